-- What a client may do in a minute: -1 is unlimited, 0 nothing at all.
CREATE TABLE IF NOT EXISTS clients (
    id               text PRIMARY KEY,
    rate_limit_quota int  NOT NULL
);

INSERT INTO clients (id, rate_limit_quota)
VALUES ('unlimited', -1), ('prohibited', 0), ('three', 3)
ON CONFLICT (id) DO NOTHING;

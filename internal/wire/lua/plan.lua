-- Stores a client's plan, unless the plan was invalidated while its source was queried.
--
-- A caller reads the token before it queries the source, and writes a random token if there is
-- none. Invalidate replaces the token. So an answer that may be older than an Invalidate finds
-- another token, or none: tokens do not repeat.
--
-- KEYS[1]  the plan
-- KEYS[2]  its token, in the same hash slot
-- ARGV[1]  the token that was read before the query
-- ARGV[2]  the plan's text
-- ARGV[3]  milliseconds until the plan expires
--
-- Reply: 1 if the plan was stored, 0 if the token has changed or expired
--
-- State: two strings that expire. Without the plan, the source is queried again; without its token,
-- an answer is not stored. So expiry loses nothing.

if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
return 1

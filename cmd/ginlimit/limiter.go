package main

import (
	"bytes"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// limiter returns a limiter of the application's prefix. It counts as no process, decides nothing without Redis, and
// remembers nothing. The tool reads overrides itself, and writes them with clients as Redis has them: what needs
// other keys gets its secret by an option.
func (t *tool) limiter(rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) (*ginlimit.Limiter, error) {
	opts = append(opts, ginlimit.WithPrefix(t.prefix), ginlimit.WithTimeout(t.timeout), ginlimit.WithReplicas(1),
		ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithDenyCache(0), ginlimit.WithoutOverrides(),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	return ginlimit.NewLimiter(rdb, opts...)
}

// keySecret returns the secret of keys, or nil.
func (t *tool) keySecret() ([]byte, error) {
	if t.secret == "" {
		if secret := t.env("GINLIMIT_KEY_SECRET"); secret != "" {
			return []byte(secret), nil
		}
		return nil, nil
	}
	secret, err := os.ReadFile(t.secret)
	if err != nil {
		return nil, usage("--key-secret-file: %w", fileError(err))
	}
	return bytes.TrimSuffix(secret, []byte("\n")), nil
}

package redisstore

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// newAnswers returns the answers of a Redis, and a client of it.
func newAnswers(t *testing.T) (*Answers, *redis.Client) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return NewAnswers(rdb), rdb
}

// TestPlanIsStoredOncePerToken, and only with the token that Redis has. The reply says whether it
// was stored.
func TestPlanIsStoredOncePerToken(t *testing.T) {
	t.Parallel()
	answers, rdb := newAnswers(t)
	store := func(token, text string) bool {
		stored, err := answers.Store(t.Context(), "plan", token, text, time.Minute)
		require.NoError(t, err)
		return stored
	}
	require.False(t, store("a", "without a token"))
	require.Zero(t, rdb.Exists(t.Context(), "plan").Val())

	require.NoError(t, rdb.Set(t.Context(), "plan:token", "a", time.Second).Err())
	require.False(t, store("b", "with another token"))
	require.Zero(t, rdb.Exists(t.Context(), "plan").Val())

	require.True(t, store("a", "with its token"))
	require.Equal(t, "with its token", rdb.Get(t.Context(), "plan").Val())
	require.Equal(t, time.Minute, rdb.PTTL(t.Context(), "plan").Val())
	require.Zero(t, rdb.Exists(t.Context(), "plan:token").Val())

	require.False(t, store("a", "an older answer"))
	require.Equal(t, "with its token", rdb.Get(t.Context(), "plan").Val())
}

// TestAnswers: a question, its answer, and what a Forget in between does.
func TestAnswers(t *testing.T) {
	t.Parallel()
	answers, rdb := newAnswers(t)
	ctx := t.Context()
	get := func() (string, time.Duration) {
		t.Helper()
		text, left, err := answers.Get(ctx, "k")
		require.NoError(t, err)
		return text, left
	}
	text, _ := get()
	require.Empty(t, text)

	for _, fresh := range []string{"1", "2"} {
		token, err := answers.Token(ctx, "k", fresh, time.Second)
		require.NoError(t, err)
		require.Equal(t, "1", token, "the first one stays")
	}
	require.Equal(t, time.Second, rdb.PTTL(ctx, "k:token").Val())
	stored, err := answers.Store(ctx, "k", "1", "text", time.Minute)
	require.NoError(t, err)
	require.True(t, stored)
	text, left := get()
	require.Equal(t, "text", text)
	require.Equal(t, time.Minute, left)

	token, err := answers.Token(ctx, "k", "3", time.Second)
	require.NoError(t, err)
	require.Equal(t, "3", token)
	require.NoError(t, answers.Forget(ctx, "k", "4", 2*time.Second))
	require.Equal(t, 2*time.Second, rdb.PTTL(ctx, "k:token").Val())
	text, _ = get()
	require.Empty(t, text)
	stored, err = answers.Store(ctx, "k", token, "old", time.Minute)
	require.NoError(t, err)
	require.False(t, stored)

	require.NoError(t, rdb.RPush(ctx, "list", "x").Err())
	_, _, err = answers.Get(ctx, "list")
	require.True(t, IsErrorReply(err))
}

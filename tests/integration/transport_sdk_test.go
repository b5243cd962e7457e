//go:build nightly

package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/openai/openai-go"
	"github.com/openai/openai-go/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// TestGeneratedSDK: that of OpenAI, which is generated from its API's description. Its tokens are counted, an estimate
// first, and no credential of it reaches Redis.
func TestGeneratedSDK(t *testing.T) {
	t.Parallel()
	const (
		estimate, actual = 50, 30
		secret           = "sk-secret"
		chunk            = `{"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"%d"}}]}`
		whole            = `{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"}}]}`
	)
	next := make(chan struct{})
	var requests atomic.Int64
	server := denyFirst(t, &requests, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "Bearer "+secret, r.Header.Get("Authorization"))
		w.Header().Set("Used-Tokens", fmt.Sprint(actual))
		if !strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: "+chunk+"\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	calls, left := beneath(t, rdb, transport.WithCost(func(*http.Request) int { return estimate }),
		transport.WithSettle(func(r *http.Response) (n int) {
			if _, err := fmt.Sscan(r.Header.Get("Used-Tokens"), &n); err != nil {
				return -1
			}
			return n
		}))
	sdk := openai.NewClient(option.WithBaseURL(server.URL), option.WithAPIKey(secret), option.WithMaxRetries(1),
		option.WithHTTPClient(&http.Client{Transport: calls}))
	ask := openai.ChatCompletionNewParams{Model: "m",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}}
	require.Equal(t, "hello", testkit.Must(sdk.Chat.Completions.New(t.Context(), ask)).Choices[0].Message.Content)
	require.EqualValues(t, 2, requests.Load(), "the SDK's own retry")
	before := left()
	require.Equal(t, []int{hourly - estimate - actual, atOnce}, before, "a 429 that says nothing leaves the estimate")

	stream := sdk.Chat.Completions.NewStreaming(t.Context(), ask)
	for i := range 3 {
		require.True(t, stream.Next())
		require.Equal(t, fmt.Sprint(i), stream.Current().Choices[0].Delta.Content)
		require.Equal(t, atOnce-1, left()[1], "a stream holds its slot")
		next <- struct{}{}
	}
	require.False(t, stream.Next())
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
	require.Equal(t, atOnce, left()[1])
	require.Equal(t, before[0]-actual, left()[0])

	keys := testkit.Must(rdb.Keys(t.Context(), "*").Result())
	require.NotEmpty(t, keys)
	for _, key := range keys {
		require.NotContains(t, key, "sk-")
	}
}

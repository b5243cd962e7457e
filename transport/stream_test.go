//go:build go1.26

package transport_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestARequestThatWaitsForAStream was not sent: if it is canceled then, it gives back what it took.
func TestARequestThatWaitsForAStream(t *testing.T) {
	t.Parallel()
	arrived, next := make(chan struct{}, 9), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-next
	}))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	server.StartTLS()
	server.Client().Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{StrictMaxConcurrentRequests: true}
	client, p := over(t, server)
	get := func(ctx context.Context) error {
		r := testkit.Must(http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody))
		response, err := client.Do(r)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	first := make(chan error, 1)
	go func() { first <- get(t.Context()) }()
	<-arrived
	ctx, cancel := context.WithCancel(t.Context())
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { cancel() }}
	require.ErrorIs(t, get(httptrace.WithClientTrace(ctx, trace)), context.Canceled)
	used(t, p, 1, 1)
	require.Empty(t, arrived)
	next <- struct{}{}
	require.NoError(t, <-first)

	ctx, cancel = context.WithCancel(t.Context()) // after it was sent
	var fields atomic.Int64
	trace = &httptrace.ClientTrace{
		WroteHeaderField: func(string, []string) { fields.Add(1) },
		WroteHeaders:     func() { cancel() },
	}
	go func() { first <- get(t.Context()) }()
	<-arrived
	waits := make(chan error, 1)
	go func() { waits <- get(httptrace.WithClientTrace(ctx, trace)) }()
	next <- struct{}{}
	require.NoError(t, <-first)
	require.ErrorIs(t, <-waits, context.Canceled)
	require.Positive(t, fields.Load(), "hooks of the caller are called")
	used(t, p, 3, 0)
	close(next)
}

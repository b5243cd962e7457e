package web_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
)

// maxReadAhead is how many of the longest bodies are read ahead, of all requests of a limiter.
const maxReadAhead = 32 << 20 / (256<<10 - 1)

// isFull reports whether the queue has no place for one more request.
func (q *queued) isFull(t *testing.T) bool {
	t.Helper()
	start, c := time.Now(), q.connect(t)
	c.send(get)
	require.NoError(t, c.SetReadDeadline(start.Add(time.Second)))
	_, err := c.responses.Peek(1)
	require.NoError(t, c.Close())
	synctest.Wait()
	return err == nil
}

// TestWhatIsReadAheadIsBounded: for all requests of a limiter together. Then a client that leaves keeps its place,
// until others have gone.
func TestWhatIsReadAheadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue(t, maxReadAhead+1, echo)
		var clients []*peer
		come := func() {
			clients = append(clients, q.connect(t))
			clients[len(clients)-1].send(post(long)[:100])
		}
		leaves := func(n int) {
			for _, c := range clients[:n] {
				require.NoError(t, c.Close())
			}
			synctest.Wait()
			clients = clients[n:]
		}
		for range maxReadAhead + 1 {
			come()
		}
		require.NoError(t, clients[maxReadAhead].Close()) // keeps its place
		synctest.Wait()
		require.True(t, q.isFull(t))
		leaves(1)
		require.False(t, q.isFull(t))
		come() // and is read ahead
		require.True(t, q.isFull(t))
		clients = clients[len(clients)-1:]
		leaves(1)
		require.False(t, q.isFull(t))
	})
}

// TestWhatIsReadAheadCountsUntilItsHandlerReturns: a handler that has not read its body yet keeps it in memory.
func TestWhatIsReadAheadCountsUntilItsHandlerReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goesOn := make(chan bool)
		q := queue(t, maxReadAhead, func(c *gin.Context) {
			select {
			case <-goesOn:
			case <-c.Request.Context().Done(): // the test is over
			case <-time.After(10 * time.Second): // it is over, and net/http has not noticed that the client has left
			}
		})
		for range maxReadAhead {
			q.connect(t).send(post(long))
		}
		leaves := func() {
			c := q.connect(t)
			c.send(post(long)[:100])
			require.True(t, q.isFull(t))
			require.NoError(t, c.Close())
			synctest.Wait()
		}
		q.release()
		<-q.begins
		leaves()
		require.True(t, q.isFull(t), "the body was read ahead, though the memory is in use")
		goesOn <- true
		<-q.begins // the first handler has returned
		synctest.Wait()
		leaves()
		require.False(t, q.isFull(t), "the body was not read ahead, though there is memory")
	})
}

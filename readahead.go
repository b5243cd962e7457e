package ginlimit

import (
	"context"
	"net/http"
	"reflect"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/readahead"
)

const (
	// maxReadAhead is the longest body that is read ahead. Of one as long net/http's server reads the rest itself
	// before it answers, so that a read that is not over delays no response.
	maxReadAhead = 256<<10 - 1
	// maxAllReadAhead is how much memory bodies that were read ahead take, of all requests of a limiter.
	maxAllReadAhead = 32 << 20
)

// takeReadingAhead is take that reads the body of a request ahead while the request waits: else the place in the
// queue, and then a token, could be a client's that has left.
func (d *decision) takeReadingAhead(r *http.Request, how engine.Request) (failed *part, why failure) {
	n, all, body := r.ContentLength, &d.limiter.readAhead, (*readahead.Body)(nil)
	defer func() {
		if body != nil {
			body.Stop()
		}
	}()
	how.Waits = func() {
		switch {
		case body != nil:
		case all.Add(n) > maxAllReadAhead:
			all.Add(-n)
		default:
			body = readahead.Begin(r.Body, n, http.ErrBodyReadAfterClose)
			r.Body = body
			context.AfterFunc(r.Context(), func() { // the handlers have returned, and read it no more
				body.Wait()
				all.Add(-n)
			})
		}
	}
	return d.take(r.Context(), how)
}

// readsAhead reports whether a body can be read ahead: one that HTTP/1.1's server reads from the connection, and
// nobody else. A body that asks the client to send it (Expect), one of HTTP/2, and one that other middleware has
// wrapped, are of other types. The connection of an Upgrade is not only the body's.
func readsAhead(r *http.Request) bool {
	if r.ContentLength < 1 || r.ContentLength > maxReadAhead || r.Header["Upgrade"] != nil {
		return false
	}
	body := reflect.TypeOf(r.Body)
	if body == nil || body.Kind() != reflect.Pointer {
		return false
	}
	return body.Elem().Name() == "body" && body.Elem().PkgPath() == "net/http"
}

package ginlimit

import (
	"context"

	"github.com/gin-gonic/gin"
)

// waitContext returns the context by which a caller waits: for a [gin.Context] its request's, as a gin.Context
// itself ends only if its engine has ContextWithFallback.
func waitContext(ctx context.Context) context.Context {
	if c, ok := ctx.(*gin.Context); ok && c.Request != nil {
		return requestContext{c.Request.Context(), c}
	}
	return ctx
}

// requestContext is the context of a request, with the values of its gin.Context too.
type requestContext struct {
	context.Context
	values *gin.Context
}

// Value implements [context.Context].
func (c requestContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

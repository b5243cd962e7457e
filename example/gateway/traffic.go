package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// traffic has two customers of an account of their own ask until ctx ends, so that staff have something to look at:
// dave is calm, and carol asks for more than she may.
func traffic(ctx context.Context, address string) {
	for key, every := range map[string]time.Duration{"dave": 3 * time.Second, "carol": 300 * time.Millisecond} {
		go func() {
			for ctx.Err() == nil {
				go ask(ctx, address, key, 1+rand.N(200))
				select {
				case <-time.After(every/2 + rand.N(every)):
				case <-ctx.Done():
				}
			}
		}()
	}
}

func ask(ctx context.Context, address, key string, tokens int) {
	body := strings.NewReader(fmt.Sprintf(`{"prompt":"Why is the sky blue?","max_tokens":%d}`, tokens))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/complete", body)
	if err != nil {
		return
	}
	req.Header.Set("X-API-Key", key)
	if answer, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
}

package admin

import (
	"net/http"
	"time"
)

// Patient has a page wait for Redis for so long.
func Patient(page http.Handler, d time.Duration) http.Handler {
	h := *page.(*handler)
	h.patient = d
	return &h
}

// Degraded returns why a limiter is degraded.
var Degraded = degraded

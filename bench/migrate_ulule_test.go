package bench

import (
	"strconv"
	"testing"
	"time"

	"github.com/ulule/limiter/v3"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// TestMigrationOfUluleTexts reads limits as ulule does.
func TestMigrationOfUluleTexts(t *testing.T) {
	for _, text := range []string{"5-S", "10-M", "100-m", "1000-H", "2000-D"} {
		rate, err := limiter.NewRateFromFormatted(text)
		must(t, err)
		limit, err := fromUlule(text)
		must(t, err)
		if want := (ginlimit.Limit{Rate: int(rate.Limit), Period: rate.Period}); limit != want {
			t.Errorf("%s: %s, want %s", text, limit, want)
		}
	}
	for _, text := range []string{"", "5", "5-W", "x-M"} {
		if _, err := limiter.NewRateFromFormatted(text); err == nil {
			t.Errorf("ulule reads %q", text)
		}
		if _, err := fromUlule(text); err == nil {
			t.Errorf("fromUlule reads %q", text)
		}
	}
}

// TestMigrationKeepsUluleReset has X-RateLimit-Reset be the time that it was before.
func TestMigrationKeepsUluleReset(t *testing.T) {
	router := newRouter(t)
	router.Use(patientLimiter(t, redistest.Connect(t, redistest.Start(t))).Handler("api",
		ginlimit.PerHour(20).WithAlgorithm(ginlimit.FixedWindow), ululeFields()))
	start := time.Now().Unix()
	reset, err := strconv.ParseInt(get(router, "203.0.113.7").Header().Get("X-RateLimit-Reset"), 10, 64)
	must(t, err)
	if end := time.Now().Unix(); reset < start+3599 || reset > end+3600 {
		t.Errorf("reset at %d, want an hour after %d to %d", reset, start, end)
	}
}

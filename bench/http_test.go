package bench

import (
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// BenchmarkHTTP has ab send requests of one client over 64 connections of a network.
func BenchmarkHTTP(b *testing.B) {
	ab, err := exec.LookPath("ab")
	if err != nil {
		b.Skip("needs ab: apt-get install apache2-utils")
	}
	for _, l := range libraries {
		b.Run(l.name, func(b *testing.B) {
			server := httptest.NewServer(engine(l.make(b, connect(b, startRedis(b)), perHour, plenty)))
			defer server.Close()
			b.ResetTimer()
			// Of fewer requests than connections ab knows nothing.
			out, err := exec.Command(ab, "-l", "-q", "-k", "-c", "64", "-n", strconv.Itoa(max(64, b.N)), "-H", clientHeader+": client", server.URL+"/").CombinedOutput()
			b.StopTimer()
			if err != nil {
				b.Fatalf("%s: %s", err, out)
			}
			for unit, expression := range map[string]string{"requests/s": `Requests per second: +([\d.]+)`, "p50-ms": `50% +(\d+)`, "p99-ms": `99% +(\d+)`} {
				m := regexp.MustCompile(expression).FindSubmatch(out)
				if m == nil {
					b.Fatalf("no %s in %s", expression, out)
				}
				v, err := strconv.ParseFloat(string(m[1]), 64)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(v, unit)
			}
		})
	}
}

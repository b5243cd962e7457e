// Package ginlimitprom has metrics of ginlimit for Prometheus.
//
//	metrics := ginlimitprom.New()
//	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(metrics.Observe))
//	if err != nil {
//		panic(err)
//	}
//	metrics.Watch(limiter)
//	prometheus.MustRegister(metrics)
//
// Decisions are told apart by the handler's name and by outcome, never by client.
package ginlimitprom

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ginlimit/ginlimit"
)

// The buckets of ginlimit_decision_duration_seconds: from what the process decides itself to a timeout.
var durations = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3}

// Collector counts the decisions of limiters and reads their figures. [New] makes one.
//
// One is enough for all limiters of a process, and a registry takes no second one. It is safe for concurrent use.
type Collector struct {
	decisions *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	figures   []figure

	mu       sync.Mutex
	limiters []*ginlimit.Limiter
}

// figure is one of [ginlimit.Stats], summed over all limiters.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(ginlimit.Stats) float64
}

// New returns a collector of nothing yet: give [Collector.Observe] to limiters, and limiters to [Collector.Watch].
func New() *Collector {
	c := &Collector{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ginlimit_decisions_total",
			Help: "Decisions by handler, by outcome, and by whether the request was to pass.",
		}, []string{"name", "outcome", "allowed"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ginlimit_decision_duration_seconds",
			Help:    "How long decisions took.",
			Buckets: durations,
		}, []string{"name"}),
	}
	figure := func(name, help string, kind prometheus.ValueType, of func(ginlimit.Stats) float64) {
		c.figures = append(c.figures, figure{prometheus.NewDesc(name, help, nil, nil), kind, of})
	}
	figure("ginlimit_redis_servers", "Servers of Redis that decisions are sent to, summed over limiters.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Servers) })
	figure("ginlimit_redis_servers_lost", "Servers of Redis that are given up for lost, summed over limiters.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.LostServers) })
	figure("ginlimit_batches_total", "Batches sent to Redis.", prometheus.CounterValue,
		func(s ginlimit.Stats) float64 { return float64(s.Batches) })
	figure("ginlimit_batched_decisions_total", "Decisions sent to Redis, in batches.", prometheus.CounterValue,
		func(s ginlimit.Stats) float64 { return float64(s.Decisions) })
	figure("ginlimit_batches_in_flight", "Batches on their way to Redis.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.InFlight) })
	figure("ginlimit_queued_decisions", "Decisions that wait for a batch.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Queued) })
	figure("ginlimit_slots", "Slots held by requests in flight in the process.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Slots) })
	figure("ginlimit_bans", "Bans of clients that the process has found and that last.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Bans) })
	figure("ginlimit_leases", "Keys of which the process has tokens that it took ahead.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Leases) })
	figure("ginlimit_leased_decisions_total", "Decisions without Redis, by tokens taken ahead.", prometheus.CounterValue,
		func(s ginlimit.Stats) float64 { return float64(s.Leased) })
	figure("ginlimit_remembered_refusals", "Refusals that may be told without Redis.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Remembered) })
	figure("ginlimit_local_buckets", "Buckets in the process, which decide without Redis, full ones that are not forgotten yet among them.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.LocalBuckets) })
	return c
}

// Observe counts a decision. It is for [ginlimit.WithObserver].
func (c *Collector) Observe(_ context.Context, e ginlimit.Event) {
	name := strings.ToValidUTF8(e.Name, "\uFFFD") // or Prometheus' client panics
	c.decisions.WithLabelValues(name, e.Outcome.String(), strconv.FormatBool(e.Allowed)).Inc()
	c.duration.WithLabelValues(name).Observe(e.Duration.Seconds())
}

// Watch adds limiters whose [ginlimit.Limiter.Stats] are read. The figures of several are summed; of one that is
// closed, the counters stay, and so does its memory: it is for limiters that live as long as the process. A limiter that
// is watched already, and a nil one, change nothing.
func (c *Collector) Watch(limiters ...*ginlimit.Limiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range limiters {
		if l != nil && !slices.Contains(c.limiters, l) {
			c.limiters = append(c.limiters, l)
		}
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	c.decisions.Describe(descs)
	c.duration.Describe(descs)
	for _, g := range c.figures {
		descs <- g.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	c.decisions.Collect(metrics)
	c.duration.Collect(metrics)
	c.mu.Lock()
	limiters := slices.Clone(c.limiters)
	c.mu.Unlock()
	sums := make([]float64, len(c.figures))
	for _, l := range limiters {
		s := l.Stats()
		for i, g := range c.figures {
			sums[i] += g.of(s)
		}
	}
	for i, g := range c.figures {
		metrics <- prometheus.MustNewConstMetric(g.desc, g.kind, sums[i])
	}
}

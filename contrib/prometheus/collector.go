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
// Labels are names of policies and words of small closed sets, never a client's key.
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
var durations = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3,
	10e-3, 25e-3, 50e-3, 100e-3, 250e-3}

// openings are the usual reasons why a breaker opens. Their counters begin with 0: Prometheus sees
// no increase of one that was not there before.
var openings = []ginlimit.Reason{ginlimit.ReasonLate, ginlimit.ReasonConnectionRefused, ginlimit.ReasonUnknownHost,
	ginlimit.ReasonTLS, ginlimit.ReasonNetwork, ginlimit.ReasonPool, ginlimit.ReasonClient, ginlimit.ReasonReply,
	ginlimit.ReasonClusterDown, ginlimit.ReasonErr, ginlimit.ReasonLoading, ginlimit.ReasonMasterDown,
	ginlimit.ReasonNoAuth, ginlimit.ReasonWrongPass}

// Collector counts the decisions of limiters and reads their figures. [New] makes one.
//
// One is enough for all limiters of a process, and a registry takes no second one. It is safe for concurrent use.
type Collector struct {
	decisions *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	waited    *prometheus.CounterVec
	errors    *prometheus.CounterVec
	figures   []figure

	transitions, planLookups, waiting *prometheus.Desc

	mu       sync.Mutex // guards everything below
	limiters []*ginlimit.Limiter
	plans    []*ginlimit.Plans
}

// figure is one of [ginlimit.Stats], summed over all limiters.
type figure struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	of      func(ginlimit.Stats) float64
	largest bool // of several limiters the largest is reported, else the sum
}

// New returns a collector of nothing yet: give [Collector.Observe] to limiters, and limiters to [Collector.Watch].
func New() *Collector {
	c := &Collector{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ginlimit_decisions_total",
			Help: "Decisions by policy: what came of them, where they were made, why they are a denial, " +
				"and whether of a dry run.",
		}, []string{"name", "outcome", "source", "cause", "dry_run"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ginlimit_decision_duration_seconds",
			Help: "How long decisions took, by where they were made, without the time that callers " +
				"waited for tokens or slots.",
			Buckets: durations,
		}, []string{"name", "source"}),
		waited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ginlimit_wait_seconds_total",
			Help: "Time that callers waited for tokens or slots, added when the wait ends.",
		}, []string{"name"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ginlimit_errors_total",
			Help: "Decisions that Redis did not make, and requests without a decision, by reason.",
		}, []string{"name", "reason"}),
		transitions: prometheus.NewDesc("ginlimit_breaker_transitions_total",
			"Transitions of circuit breakers, by the new state, and of those that opened by the reason.",
			[]string{"to", "reason"}, nil),
		planLookups: prometheus.NewDesc("ginlimit_plan_lookups_total",
			"Lookups of clients' plans, by result.", []string{"result"}, nil),
		waiting: prometheus.NewDesc("ginlimit_waiting_callers",
			"Callers in the process that wait for tokens or a slot, by policy.", []string{"name"}, nil),
	}
	c.addFigures()
	return c
}

// addFigures adds what [ginlimit.Stats] has one of.
func (c *Collector) addFigures() {
	figure := func(name, help string, kind prometheus.ValueType, of func(ginlimit.Stats) float64) {
		c.figures = append(c.figures, figure{prometheus.NewDesc(name, help, nil, nil), kind, of, false})
	}
	figure("ginlimit_redis_servers", "Servers of Redis that decisions are sent to, summed over limiters.",
		prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Servers) })
	figure("ginlimit_redis_servers_lost", "Servers of Redis whose circuit breaker is open, summed over limiters.",
		prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.LostServers) })
	figure("ginlimit_batches_total", "Batches sent to Redis.", prometheus.CounterValue,
		func(s ginlimit.Stats) float64 { return float64(s.Batches) })
	figure("ginlimit_batched_decisions_total", "Decisions sent to Redis, in batches.", prometheus.CounterValue,
		func(s ginlimit.Stats) float64 { return float64(s.Decisions) })
	figure("ginlimit_batches_in_flight", "Batches on their way to Redis.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.InFlight) })
	figure("ginlimit_queued_decisions", "Decisions that wait for a batch.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Queued) })
	figure("ginlimit_replicas", "Processes or limiters that share the limits without Redis, the largest of several.",
		prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Replicas) })
	c.figures[len(c.figures)-1].largest = true
	figure("ginlimit_slots", "Slots held by requests in flight in the process.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Slots) })
	figure("ginlimit_bans", "Bans of clients that the process has found and that last.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Bans) })
	figure("ginlimit_overrides", "Overrides that the process knows and that have not ended.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Overrides) })
	figure("ginlimit_leases", "Keys of which the process has tokens that it took ahead.", prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Leases) })
	figure("ginlimit_leased_decisions_total", "Decisions without Redis, by tokens taken ahead.", prometheus.CounterValue,
		func(s ginlimit.Stats) float64 { return float64(s.Leased) })
	figure("ginlimit_remembered_denials", "Denials that the process remembers and repeats without Redis.",
		prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.Remembered) })
	figure("ginlimit_local_buckets",
		"Buckets in the process, which decide without Redis, full ones that are not forgotten yet among them.",
		prometheus.GaugeValue,
		func(s ginlimit.Stats) float64 { return float64(s.LocalBuckets) })
}

// Observe counts a decision. It is for [ginlimit.WithObserver].
func (c *Collector) Observe(_ context.Context, e ginlimit.Event) {
	if e.Outcome == ginlimit.OutcomeSettled {
		return
	}
	name := validName(e.Name)
	c.decisions.WithLabelValues(name, e.Outcome.String(), e.Source.String(), e.Cause.String(),
		strconv.FormatBool(e.DryRun)).Inc()
	c.duration.WithLabelValues(name, e.Source.String()).Observe((e.Duration - e.Waited).Seconds())
	if e.Waited > 0 {
		c.waited.WithLabelValues(name).Add(e.Waited.Seconds())
	}
	if e.Reason != "" {
		c.errors.WithLabelValues(name, string(e.Reason)).Inc()
	}
}

// validName returns a policy's name as a label: of another Prometheus' client panics.
func validName(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// Watch adds limiters whose [ginlimit.Limiter.Stats] are read. The figures of several are summed, but
// of Replicas the largest is reported. A closed limiter's counters and memory stay, so watch limiters
// that live as long as the process. A limiter that is watched already, and a nil one, change nothing.
func (c *Collector) Watch(limiters ...*ginlimit.Limiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range limiters {
		if l != nil && !slices.Contains(c.limiters, l) {
			c.limiters = append(c.limiters, l)
		}
	}
}

// WatchPlans adds plans whose [ginlimit.Plans.Stats] are read, and summed. They are for as long as
// the process lives. Plans that are watched already, and nil ones, change nothing.
func (c *Collector) WatchPlans(plans ...*ginlimit.Plans) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range plans {
		if p != nil && !slices.Contains(c.plans, p) {
			c.plans = append(c.plans, p)
		}
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	c.decisions.Describe(descs)
	c.duration.Describe(descs)
	c.waited.Describe(descs)
	c.errors.Describe(descs)
	descs <- c.transitions
	descs <- c.planLookups
	descs <- c.waiting
	for _, g := range c.figures {
		descs <- g.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	c.decisions.Collect(metrics)
	c.duration.Collect(metrics)
	c.waited.Collect(metrics)
	c.errors.Collect(metrics)
	c.mu.Lock()
	limiters, plans := slices.Clone(c.limiters), slices.Clone(c.plans)
	c.mu.Unlock()
	sums, waiting := make([]float64, len(c.figures)), map[string]int{}
	transitions := map[ginlimit.Transition]uint64{{To: "half_open"}: 0, {To: "closed"}: 0}
	for _, reason := range openings {
		transitions[ginlimit.Transition{To: "open", Reason: reason}] = 0
	}
	for _, l := range limiters {
		s := l.Stats()
		for t, n := range s.Transitions {
			transitions[t] += n
		}
		for name, n := range s.Waiting {
			waiting[validName(name)] += n
		}
		for i, g := range c.figures {
			if g.largest {
				sums[i] = max(sums[i], g.of(s))
			} else {
				sums[i] += g.of(s)
			}
		}
	}
	for i, g := range c.figures {
		metrics <- prometheus.MustNewConstMetric(g.desc, g.kind, sums[i])
	}
	for t, n := range transitions {
		metrics <- prometheus.MustNewConstMetric(c.transitions, prometheus.CounterValue, float64(n), t.To, string(t.Reason))
	}
	for name, n := range waiting {
		metrics <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(n), name)
	}
	if len(plans) == 0 {
		return
	}
	var s ginlimit.PlanStats
	for _, p := range plans {
		one := p.Stats()
		s.Hits, s.Misses, s.Stale, s.Errors = s.Hits+one.Hits, s.Misses+one.Misses, s.Stale+one.Stale, s.Errors+one.Errors
	}
	for result, n := range map[string]uint64{"hit": s.Hits, "miss": s.Misses, "stale": s.Stale, "error": s.Errors} {
		metrics <- prometheus.MustNewConstMetric(c.planLookups, prometheus.CounterValue, float64(n), result)
	}
}

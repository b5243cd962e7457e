// Package ginlimitotel has traces and metrics of ginlimit for OpenTelemetry.
//
//	telemetry, err := ginlimitotel.New()
//	if err != nil {
//		panic(err)
//	}
//	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(telemetry.Observe))
//	if err != nil {
//		panic(err)
//	}
//	telemetry.Watch(limiter)
//
// Decisions are told apart by policy, outcome, source, cause and dry run, never by client.
package ginlimitotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/ginlimit/ginlimit"
)

// ScopeName is the instrumentation scope of the metrics.
const ScopeName = "github.com/ginlimit/ginlimit/contrib/otel"

// Attributes of spans. Metrics of decisions have the first four; the cause, of a denial; and
// error.type for the reason, if there is one.
const (
	PolicyKey  = attribute.Key("ginlimit.policy")  // name of the policy
	OutcomeKey = attribute.Key("ginlimit.outcome") // see [ginlimit.Outcome]
	SourceKey  = attribute.Key("ginlimit.source")  // where the decision was made: see [ginlimit.Source]
	DryRunKey  = attribute.Key("ginlimit.dry_run") // whether the policy only tries its limits
	CauseKey   = attribute.Key("ginlimit.cause")   // why it is denied: see [ginlimit.Cause]; "" if it is not
	// why Redis did not decide, or why there is no decision; "" of a normal one: see
	// [ginlimit.Event]
	ReasonKey = attribute.Key("ginlimit.reason")
	// the limit closest to exhaustion as text; "" if no limit was checked
	LimitKey = attribute.Key("ginlimit.limit")
	// whole tokens left in it; 0 if no limit was checked, -1 if it is unlimited
	RemainingKey = attribute.Key("ginlimit.remaining")
)

// Attributes of other metrics.
const (
	ErrorTypeKey    = attribute.Key("error.type")             // of decisions and transitions: the reason
	BreakerStateKey = attribute.Key("ginlimit.breaker.state") // of transitions: the new state
	PlanResultKey   = attribute.Key("ginlimit.plan.result")   // of lookups of plans: hit, miss, stale or error
)

// The buckets of ginlimit.decision.duration: from what the process decides itself to a timeout.
var durations = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3,
	10e-3, 25e-3, 50e-3, 100e-3, 250e-3}

// Observer describes decisions on spans, counts them, and reads the figures of limiters. [New] makes one.
//
// One is enough for all limiters of a process: the figures of two would be reported as one or the
// other. It is safe for concurrent use.
type Observer struct {
	decisions metric.Int64Counter
	duration  metric.Float64Histogram
	waited    metric.Float64Counter
	figures   []figure
	callback  metric.Registration

	transitions, planLookups metric.Int64ObservableCounter
	waiting                  metric.Int64ObservableUpDownCounter

	mu       sync.Mutex
	limiters []*ginlimit.Limiter
	plans    []*ginlimit.Plans
}

// figure is one of [ginlimit.Stats], summed over all limiters.
type figure struct {
	instrument metric.Int64Observable
	of         func(ginlimit.Stats) int64
	largest    bool // of several limiters the largest is reported, else the sum
}

// Option configures an [Observer]; nil is an error of [New].
type Option func(*config)

type config struct{ meters metric.MeterProvider }

// WithMeterProvider sets what records the metrics. The default is the global provider, [otel.GetMeterProvider].
// A nil provider is an error of [New].
func WithMeterProvider(provider metric.MeterProvider) Option {
	return func(c *config) { c.meters = provider }
}

// New returns an observer of nothing yet: give [Observer.Observe] to limiters, and limiters to [Observer.Watch].
//
// The error joins all faults of the options, each a [ginlimit.OptionError], or the meter provider's errors.
func New(opts ...Option) (*Observer, error) {
	c, at := config{meters: otel.GetMeterProvider()}, -1
	var faults []error
	require := func(ok bool, index int, option, text string) {
		if !ok {
			err := fmt.Errorf("%w: ginlimitotel: %s", ginlimit.ErrInvalidArgument, text)
			faults = append(faults, &ginlimit.OptionError{Index: index, Option: option, Err: err})
		}
	}
	for i, opt := range opts {
		if require(opt != nil, i, "", fmt.Sprintf("option %d is nil", i+1)); opt != nil {
			opt(&c)
			at = i
		}
	}
	require(c.meters != nil, at, "WithMeterProvider", "the meter provider is nil")
	if faults != nil {
		return nil, errors.Join(faults...)
	}
	meter := c.meters.Meter(ScopeName)
	o := &Observer{}
	var errs [4]error
	o.decisions, errs[0] = meter.Int64Counter("ginlimit.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("Number of decisions."))
	o.duration, errs[1] = meter.Float64Histogram("ginlimit.decision.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of decisions, without the time that callers waited for tokens or slots."),
		metric.WithExplicitBucketBoundaries(durations...))
	o.waited, errs[2] = meter.Float64Counter("ginlimit.wait.time", metric.WithUnit("s"),
		metric.WithDescription("Time that callers waited for tokens or slots, added when the wait ends."))
	errs[3] = o.register(meter)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, o.Unregister())
	}
	return o, nil
}

// register adds the instruments that read [ginlimit.Stats].
func (o *Observer) register(meter metric.Meter) error {
	var errs []error
	var all []metric.Observable
	add := func(instrument metric.Int64Observable, err error, of func(ginlimit.Stats) int64) {
		errs, all = append(errs, err), append(all, instrument)
		o.figures = append(o.figures, figure{instrument, of, false})
	}
	count := func(name, unit, description string, of func(ginlimit.Stats) int64) {
		c, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		add(c, err, of)
	}
	current := func(name, unit, description string, of func(ginlimit.Stats) int64) {
		c, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		add(c, err, of)
	}
	current("ginlimit.redis.server.count", "{server}", "Redis servers that decisions are sent to.",
		func(s ginlimit.Stats) int64 { return int64(s.Servers) })
	current("ginlimit.redis.breaker.open", "{server}", "Redis servers whose circuit breaker is open.",
		func(s ginlimit.Stats) int64 { return int64(s.LostServers) })
	count("ginlimit.redis.batches", "{batch}", "Batches sent to Redis.",
		func(s ginlimit.Stats) int64 { return int64(s.Batches) })
	count("ginlimit.redis.decisions", "{decision}", "Decisions sent to Redis, in batches.",
		func(s ginlimit.Stats) int64 { return int64(s.Decisions) })
	current("ginlimit.redis.batch.in_flight", "{batch}", "Batches that are sent and not answered.",
		func(s ginlimit.Stats) int64 { return int64(s.InFlight) })
	current("ginlimit.redis.decision.queued", "{decision}", "Decisions that wait for a batch.",
		func(s ginlimit.Stats) int64 { return int64(s.Queued) })
	replicas, err := meter.Int64ObservableGauge("ginlimit.replica.count", metric.WithUnit("{limiter}"),
		metric.WithDescription("Processes or limiters that share the limits without Redis, the largest of several."))
	add(replicas, err, func(s ginlimit.Stats) int64 { return int64(s.Replicas) })
	o.figures[len(o.figures)-1].largest = true
	current("ginlimit.slot.usage", "{slot}", "Slots held by requests in flight in this process.",
		func(s ginlimit.Stats) int64 { return int64(s.Slots) })
	current("ginlimit.ban.count", "{ban}", "Bans of clients that this process has found and that last.",
		func(s ginlimit.Stats) int64 { return int64(s.Bans) })
	current("ginlimit.override.count", "{override}", "Overrides that this process knows and that have not ended.",
		func(s ginlimit.Stats) int64 { return int64(s.Overrides) })
	current("ginlimit.lease.count", "{key}", "Keys of which this process has tokens that it took ahead.",
		func(s ginlimit.Stats) int64 { return int64(s.Leases) })
	count("ginlimit.lease.decisions", "{decision}", "Decisions without Redis, by tokens taken ahead.",
		func(s ginlimit.Stats) int64 { return int64(s.Leased) })
	current("ginlimit.denial.remembered", "{denial}", "Denials that this process remembers and repeats without Redis.",
		func(s ginlimit.Stats) int64 { return int64(s.Remembered) })
	current("ginlimit.local.bucket.count", "{bucket}", "Buckets in this process, which decide without Redis.",
		func(s ginlimit.Stats) int64 { return int64(s.LocalBuckets) })
	o.transitions, err = meter.Int64ObservableCounter("ginlimit.redis.breaker.transitions",
		metric.WithUnit("{transition}"),
		metric.WithDescription("Transitions of circuit breakers, by the new state, and of those that opened by the reason."))
	errs = append(errs, err)
	o.planLookups, err = meter.Int64ObservableCounter("ginlimit.plan.lookups", metric.WithUnit("{lookup}"),
		metric.WithDescription("Lookups of clients' plans, by result."))
	errs = append(errs, err)
	o.waiting, err = meter.Int64ObservableUpDownCounter("ginlimit.wait.active", metric.WithUnit("{caller}"),
		metric.WithDescription("Callers in this process that wait for tokens or a slot, by policy."))
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	all = append(all, o.transitions, o.planLookups, o.waiting)
	o.callback, err = meter.RegisterCallback(o.report, all...)
	return err
}

// report reads the figures of all limiters.
func (o *Observer) report(_ context.Context, to metric.Observer) error {
	o.mu.Lock()
	limiters, plans := slices.Clone(o.limiters), slices.Clone(o.plans)
	o.mu.Unlock()
	sums, waiting := make([]int64, len(o.figures)), map[string]int{}
	transitions := map[ginlimit.Transition]uint64{}
	for _, l := range limiters {
		s := l.Stats()
		for t, n := range s.Transitions {
			transitions[t] += n
		}
		for name, n := range s.Waiting {
			waiting[validName(name)] += n
		}
		for i, f := range o.figures {
			if f.largest {
				sums[i] = max(sums[i], f.of(s))
			} else {
				sums[i] += f.of(s)
			}
		}
	}
	for i, f := range o.figures {
		to.ObserveInt64(f.instrument, sums[i])
	}
	for t, n := range transitions {
		attributes := []attribute.KeyValue{BreakerStateKey.String(t.To)}
		if t.Reason != "" {
			attributes = append(attributes, ErrorTypeKey.String(string(t.Reason)))
		}
		to.ObserveInt64(o.transitions, int64(n), metric.WithAttributes(attributes...))
	}
	for name, n := range waiting {
		to.ObserveInt64(o.waiting, int64(n), metric.WithAttributes(PolicyKey.String(name)))
	}
	if len(plans) == 0 {
		return nil
	}
	var s ginlimit.PlanStats
	for _, p := range plans {
		more := p.Stats()
		s.Hits, s.Misses, s.Stale, s.Errors = s.Hits+more.Hits, s.Misses+more.Misses, s.Stale+more.Stale, s.Errors+more.Errors
	}
	for result, n := range map[string]uint64{"hit": s.Hits, "miss": s.Misses, "stale": s.Stale, "error": s.Errors} {
		to.ObserveInt64(o.planLookups, int64(n), metric.WithAttributes(PlanResultKey.String(result)))
	}
	return nil
}

// Observe counts a decision and describes it on the span of its context. It is for [ginlimit.WithObserver].
//
// If several policies decide on one request, the span has the attributes of the last decision. A
// denial ends a request, so that is the denial; in a dry run the request goes on. The metrics
// count each decision. A span that does not record is left alone, and a settlement is no decision.
func (o *Observer) Observe(ctx context.Context, e ginlimit.Event) {
	if e.Outcome == ginlimit.OutcomeSettled {
		return
	}
	common := []attribute.KeyValue{
		PolicyKey.String(validName(e.Name)),
		OutcomeKey.String(e.Outcome.String()), SourceKey.String(e.Source.String()), DryRunKey.Bool(e.DryRun)}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		limit, remaining := "", 0
		if e.Limit != (ginlimit.Limit{}) {
			if limit, remaining = e.Limit.String(), e.Remaining; e.Limit.Rate < 0 {
				remaining = -1
			}
		}
		// all, so that none is of an earlier decision
		span.SetAttributes(append(slices.Clip(common), CauseKey.String(e.Cause.String()), ReasonKey.String(string(e.Reason)),
			LimitKey.String(limit), RemainingKey.Int(remaining))...)
	}
	if e.Cause != 0 {
		common = append(common, CauseKey.String(e.Cause.String()))
	}
	if e.Reason != "" {
		common = append(common, ErrorTypeKey.String(string(e.Reason)))
	}
	if e.Waited > 0 {
		o.waited.Add(ctx, e.Waited.Seconds(), metric.WithAttributes(common[0])) // the policy
	}
	with := metric.WithAttributeSet(attribute.NewSet(common...))
	o.decisions.Add(ctx, 1, with)
	o.duration.Record(ctx, (e.Duration - e.Waited).Seconds(), with)
}

// validName returns a policy's name as an attribute: with another OTLP exporters fail.
func validName(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// Watch adds limiters whose [ginlimit.Limiter.Stats] are read. The figures of several are summed, but
// of Replicas the largest is reported. A closed limiter's counters and memory stay, so watch limiters
// that live as long as the process. A limiter that is watched already, and a nil one, change nothing.
func (o *Observer) Watch(limiters ...*ginlimit.Limiter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range limiters {
		if l != nil && !slices.Contains(o.limiters, l) {
			o.limiters = append(o.limiters, l)
		}
	}
}

// WatchPlans adds plans whose [ginlimit.Plans.Stats] are read, and summed. They are for as long as
// the process lives. Plans that are watched already, and nil ones, change nothing.
func (o *Observer) WatchPlans(plans ...*ginlimit.Plans) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range plans {
		if p != nil && !slices.Contains(o.plans, p) {
			o.plans = append(o.plans, p)
		}
	}
}

// Unregister ends the reading of figures. Decisions are still counted. Further calls do nothing. The
// error is the meter provider's.
func (o *Observer) Unregister() error {
	if o.callback == nil {
		return nil
	}
	return o.callback.Unregister()
}

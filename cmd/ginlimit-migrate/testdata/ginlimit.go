// Package ginlimit has names of version 0.1, for tests.
package ginlimit

import "time"

type Limit struct {
	Rate   int
	Period time.Duration
	Burst  int
}

func (l Limit) WithBurst(n int) Limit { return l }

func PerSecond(n int) Limit { return Limit{} }
func PerMinute(n int) Limit { return Limit{} }
func PerHour(n int) Limit   { return Limit{} }
func PerDay(n int) Limit    { return Limit{} }

type (
	Option    func()
	Algorithm uint8
	Failure   uint8
	Source    uint8
	Outcome   uint8
	Handler   func()
	Policy    struct{}
	Limiter   struct{}
)

const (
	FixedWindow Algorithm = 1
	FailOpen    Failure   = 1
	FromMemory  Source    = 1

	OutcomeRefused Outcome = 1
	OutcomeOpen    Outcome = 2

	LocalBuckets = 1
)

var ErrInvalidLimit error

func New(rdb any, limit Limit, opts ...Option) Handler         { return nil }
func NewLimiter(rdb any, opts ...Option) (*Limiter, error)     { return nil, nil }
func (l *Limiter) Handler(limit Limit, opts ...Option) Handler { return nil }
func (l *Limiter) Policy(limit Limit, opts ...Option) *Policy  { return nil }
func (l *Limiter) Allow(key string, limits ...Limit) error     { return nil }
func (p *Policy) Allow(client string) error                    { return nil }
func WithName(name string) Option                              { return nil }
func WithLimits(more ...Limit) Option                          { return nil }
func WithAlgorithm(a Algorithm) Option                         { return nil }
func WithFailure(f Failure) Option                             { return nil }
func WithConcurrency(n int) Option                             { return nil }
func WithDenyMemory(n int) Option                              { return nil }
func WithKey(f func() string) Option                           { return nil }
func WithLimitFunc(f func() []Limit) Option                    { return nil }
func ByFirst(f ...func() string) func() string                 { return nil }

func WithIdentity(name string, f func() string, limits ...Limit) Option { return nil }

package lease

import "time"

// planHoards draws rounds. In each, processes want much and use little for a while, so that they hold
// what has flowed back to the bucket. Then all use what they can at once.
func (s *simulation) planHoards() {
	r, after := s.rand, time.Duration(0)
	for range 5 {
		most := s.life
		if r.IntN(2) == 0 {
			most = max(most, time.Duration(s.buckets[0].FillTime())*ms)
		}
		hoards := 1 + r.IntN(60)
		span := 1 + r.Int64N(int64(4*most))
		for range hoards {
			p, wanted := s.processes[r.IntN(len(s.processes))], 1+r.Int64N(s.buckets[0].Burst)
			s.at(after+time.Duration(r.Int64N(span)), func() {
				p.want(wanted)
				p.call(1, 1)
			})
		}
		after += time.Duration(span)
		for range 1 + r.IntN(20) {
			p := s.processes[r.IntN(len(s.processes))]
			s.at(after+time.Duration(r.Int64N(int64(s.life))>>r.IntN(10)), func() {
				for p.take(1, false) {
				}
				p.travel(1+r.Int64N(s.buckets[0].Burst), 1)
			})
		}
	}
}

// want counts calls that are denied without a trip.
func (p *simProcess) want(tokens int64) {
	subject := p.subject()
	if e := p.cache.find(&subject); e != nil {
		e.usage.add(tokens)
	}
}

// planRenewals draws rounds that end with as many tokens held as can be. Processes hold tokens for
// longer, one after another, until the limits have regained them. Another one takes as many ahead as
// the limits regain before it uses them. Then all use what they have, and what the limits have.
func (s *simulation) planRenewals() {
	r, after := s.rand, time.Duration(0)
	part := func(of time.Duration, percent int64) time.Duration {
		return of - time.Duration(r.Int64N(int64(of)*percent/100+1))
	}
	for _, p := range s.processes { // they watch the key from the second call on
		s.at(0, func() { p.travel(1, 1) })
		s.at(2*s.latency, func() { p.travel(1, 1) })
	}
	for range 3 {
		all, used := s.ahead.Burst, part(usedFor(s.life)-min(3*s.latency, s.life/2), 2)
		holders, other := s.processes[1:], s.processes[0]
		step := part(max(s.life/2, s.life-2*s.latency), 3) // it must be answered before the end
		fill := time.Duration(0)
		for i := range s.buckets {
			fill = max(fill, time.Duration(s.buckets[i].FillTime())*ms)
		}
		steps := 2 + int((fill+s.life)/step)
		end := after + time.Duration(steps)*step
		each := max(1, s.rule.life) * all * 9 / 10 / int64(len(holders)) // as many as the lease bucket has room for
		for i, p := range holders {
			last := end - used + used*time.Duration(i)/time.Duration(len(holders))
			for j := range steps {
				s.at(last-time.Duration(j)*step, func() { p.hold(each) })
			}
		}
		s.at(end-used, func() { other.hold(all - all/16) })
		end += 2 * s.latency
		for _, p := range s.processes {
			s.at(end, func() {
				subject := p.subject()
				if e := p.cache.find(&subject); e != nil && p.cache.usable(e) > 0 {
					p.take(p.cache.usable(e), false)
				}
				p.travel(s.buckets[0].Burst, 1)
			})
		}
		after = end + time.Duration(r.Int64N(int64(4*s.life)))
	}
}

// hold makes a trip that takes tokens ahead or holds them for longer, and uses none of them.
func (p *simProcess) hold(tokens int64) {
	subject := p.subject()
	if e := p.cache.find(&subject); e != nil {
		u := &e.usage
		u.previous.Store(0)
		u.began.Store(int64(p.cache.now()))
		u.current.Store(tokens + 1) // and the trip's own
	}
	p.travel(1, 1)
}

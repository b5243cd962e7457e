package redisstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/receipt"
)

// While a cluster's hash slot migrates, Redis may answer TRYAGAIN to a call on several of its keys.
// A call on one key succeeds. So each call on several keys becomes one call per key.

const (
	// migratingTime is how long a client's keys are sent one by one after TRYAGAIN.
	migratingTime = time.Second
	// migratingPause is the wait before a call to a moved hash slot is sent again.
	migratingPause = 10 * time.Millisecond
	// migratingStripes is how many stripes share the record of migrating keys.
	migratingStripes = 64
)

// migration remembers which hash slots migrate.
type migration struct {
	timeout        time.Duration
	singleKeyUntil [migratingStripes]atomic.Int64 // by hash of a key, in Unix ms
	background     dispatch.Background            // give-backs
	apply          func(ctx context.Context, c *dispatch.Call, send Send) error
}

func (m *migration) init(c *Config) {
	m.timeout, m.apply = c.Timeout, c.Apply
	if m.apply == nil {
		m.apply = func(ctx context.Context, c *dispatch.Call, send Send) error { return send(ctx, c) }
	}
}

// closeTimeouts is how many timeouts Close waits for give-backs.
const closeTimeouts = 4

func (m *migration) close() { m.background.Close(closeTimeouts * m.timeout) }

// Do applies a call to all its buckets or to none.
func (s *Store) Do(ctx context.Context, c *dispatch.Call) error {
	keys := Keys(c)
	if keys == 1 {
		return s.do(ctx, c)
	}
	start, migrating := time.Now(), &s.migration.singleKeyUntil[c.Hash%migratingStripes]
	if start.UnixMilli() >= migrating.Load() {
		err := s.do(ctx, c)
		if err == nil || !isTryAgain(err, keys) {
			return err
		}
		migrating.Store(start.Add(migratingTime).UnixMilli())
	}
	ctx, cancel := context.WithDeadline(ctx, start.Add(s.migration.timeout))
	defer cancel()
	switch last := len(c.Buckets) - 1; {
	case tenantsOf(c.Buckets) > 0:
		return s.withoutTenants(ctx, c)
	case c.Buckets[last].Kind == bucket.Ahead:
		return s.takeNoneAhead(ctx, c)
	case c.Op.Verb == bucket.Take:
		return s.takeEach(ctx, c)
	}
	var errs []error
	for i := range c.Buckets {
		errs = append(errs, s.changeOne(ctx, c, i))
	}
	return errors.Join(errs...)
}

// changeOne changes one bucket of a call. It writes the record first: without a record, the same
// tokens could be given back twice.
func (s *Store) changeOne(ctx context.Context, c *dispatch.Call, i int) error {
	op := c.Op.Only(i)
	if op.Records != bucket.WithRecords || !c.Buckets[i].IsLimit() {
		return s.retryWhileMoving(ctx, c.Only(i, op))
	}
	op.Records = bucket.RecordsOnly
	record := c.Only(i, op)
	if err := s.retryWhileMoving(ctx, record); err != nil {
		return err
	}
	c.States[i] = record.States[0] // what was recorded, also of a full bucket
	op.Records = bucket.RecordsWritten
	if op.Verb == bucket.Return {
		units := record.States[0].Level
		if units == 0 {
			return nil
		}
		claim := op.Claims[0]
		claim.Sure, claim.Behind = units, units
		op.Claims = []bucket.Claim{claim}
	}
	return s.retryWhileMoving(ctx, c.Only(i, op))
}

// retryWhileMoving does a call on one bucket. It repeats the call until the context ends while the
// hash slot moves faster than the client can follow.
func (s *Store) retryWhileMoving(ctx context.Context, c *dispatch.Call) error {
	for {
		err := s.Do(ctx, c)
		if !isMoving(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(migratingPause):
		}
	}
}

// sendEach does an operation on each bucket, one after another. go-redis follows a moved hash slot
// at once for a single command, but pauses for several. It sets the states of the call, and returns
// the calls that it made, up to the first failure.
func (s *Store) sendEach(ctx context.Context, c *dispatch.Call, op bucket.Op) (calls []*dispatch.Call, err error) {
	op.Waits = 0 // its turns have a key of their own
	for i := range c.Buckets {
		one := c.Only(i, op)
		if err := s.do(ctx, one); err != nil {
			return calls, err
		}
		calls = append(calls, one)
		c.States[i], c.Received = one.States[0], one.Received
	}
	return calls, nil
}

// fit returns how many of the charges fit in the buckets of all calls.
func fit(charges int64, calls ...*dispatch.Call) int64 {
	for _, one := range calls {
		charges = one.Buckets[0].Fit(one.States[0].Level, charges, one.Op.N)
	}
	return charges
}

// takeEach peeks at each bucket, then charges each if all have room. It gives back what it took if
// one call fails or another caller took the room in between.
func (s *Store) takeEach(ctx context.Context, c *dispatch.Call) error {
	if !s.migration.background.Begin() {
		return dispatch.ErrClosed
	}
	defer s.migration.background.Done()
	peeks, err := s.sendEach(ctx, c, bucket.Peek(c.Op.N))
	if err != nil {
		return err
	}
	c.Sent = peeks[0].Sent
	charges := fit(c.Op.Charges, peeks...)
	if charges == 0 {
		return nil
	}
	c.Op.Charges = charges
	takes, err := s.sendEach(ctx, c, c.Op)
	kept := int64(0)
	if err == nil {
		kept = fit(charges, takes...)
		c.Attempt.Doubt = kept < charges
	}
	var back []*dispatch.Call
	for i, one := range takes {
		if !one.Buckets[0].IsLimit() {
			continue
		}
		if n := fit(charges, one) - kept; n > 0 {
			if kept == 0 { // keep the wait found before the charge
				c.States[i].Soon, c.States[i].Wait = peeks[i].States[0].Soon, peeks[i].States[0].Wait
			}
			back = append(back, one.Only(0, s.returnOp(one, n)))
		}
	}
	if back != nil {
		s.migration.background.Detached(ctx, s.migration.timeout, func(ctx context.Context) {
			for _, one := range back {
				_ = s.migration.apply(ctx, one, s.retryWhileMoving) // on an error the tokens stay taken
			}
		})
	}
	return err
}

// takeNoneAhead does a call that takes tokens ahead as if there were no room for these.
func (s *Store) takeNoneAhead(ctx context.Context, c *dispatch.Call) error {
	last := len(c.Buckets) - 1
	own := dispatch.NewCall()
	own.Reset(bucket.Op{Verb: c.Op.Verb, Charges: c.Op.Charges, N: c.Op.N}, c.Buckets[:last:last])
	own.Key, own.Hash = bytes.Clone(c.Key), c.Hash // it may outlive c, if no answer comes in time
	if err := s.Do(ctx, own); err != nil {
		return err
	}
	copy(c.States, own.States)
	c.States[last] = bucket.State{Level: c.Buckets[last].Capacity}
	c.Op.Charges, c.Sent, c.Received = own.Op.Charges, own.Sent, own.Received
	return nil
}

// withoutTenants does a call on the buckets alone, not on what tenants hold of them: for as long as a
// hash slot migrates, tenants are served in the order in which they come, and what they take counts for
// all of them. A tenant's reset or block fails.
func (s *Store) withoutTenants(ctx context.Context, c *dispatch.Call) error {
	if c.Op.Verb == bucket.Reset || c.Op.Verb == bucket.Block {
		return errMigrating
	}
	counted, shared := bucket.Counted(c.Buckets), tenantsOf(c.Buckets)
	own := dispatch.NewCall()
	own.Reset(c.Op, slices.Delete(slices.Clone(c.Buckets), counted, counted+shared))
	own.Key, own.Hash, own.Attempt = bytes.Clone(c.Key), c.Hash, c.Attempt
	err := s.Do(ctx, own)
	copy(c.States, own.States[:counted])
	for i := counted; i < counted+shared; i++ {
		c.States[i] = bucket.State{}
	}
	copy(c.States[counted+shared:], own.States[counted:])
	c.Op.Charges, c.Attempt.Doubt, c.Sent, c.Received = own.Op.Charges, own.Attempt.Doubt, own.Sent, own.Received
	return err
}

var errMigrating = errors.New("TRYAGAIN: a hash slot migrates")

// returnOp returns the operation that gives back charges of a call on one bucket.
func (s *Store) returnOp(one *dispatch.Call, charges int64) bucket.Op {
	n, taken := charges*one.Op.N, receipt.New(s.migration.timeout)
	taken.Fill(one.Sent, one.States)
	claims := taken.ClaimsAtOnce(one.Buckets, n, false)
	return bucket.Op{Verb: bucket.Return, N: n, Claims: claims, Records: bucket.WithRecords}
}

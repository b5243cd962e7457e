package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/receipt"
)

// While a hash slot of a cluster migrates, Redis answers TRYAGAIN to a call on several of its keys,
// for as long as that takes. A call on one key is done. So a call on several keys then becomes one
// call for each.

const (
	// migratingTime is for how long the keys of a client are asked for one by one without trying
	// them together first, once their hash slot was seen to migrate.
	migratingTime = time.Second
	// migratingPause is how long to wait before a call is sent again whose hash slot has moved.
	migratingPause = 10 * time.Millisecond
	// migratingStripes is over how many times the keys are spread.
	migratingStripes = 64
)

// migration is what a store knows of hash slots that migrate.
type migration struct {
	timeout    time.Duration
	until      [migratingStripes]atomic.Int64 // by the hash of a key: for how long it is taken to migrate, in Unix ms
	background dispatch.Background            // calls that give back
	changed    func(key []byte, hash uint64, err error)
}

func (m *migration) init(c *Config) {
	m.timeout, m.changed = c.Timeout, c.Changed
	if m.changed == nil {
		m.changed = func([]byte, uint64, error) {}
	}
}

// closeTimeouts is how many timeouts Close waits for calls that give back.
const closeTimeouts = 4

func (m *migration) close() { m.background.Close(closeTimeouts * m.timeout) }

// Do has a call done: on all its buckets or on none.
func (s *Store) Do(ctx context.Context, c *dispatch.Call) error {
	keys := Keys(c)
	if keys == 1 {
		return s.do(ctx, c)
	}
	start, migrating := time.Now(), &s.migration.until[c.Hash%migratingStripes]
	if start.UnixMilli() >= migrating.Load() {
		err := s.do(ctx, c)
		if err == nil || !isTryAgain(err, keys) {
			return err
		}
		migrating.Store(start.Add(migratingTime).UnixMilli())
	}
	ctx, cancel := context.WithDeadline(ctx, start.Add(s.migration.timeout))
	defer cancel()
	if c.Op.Verb == bucket.Take {
		return s.takeEach(ctx, c)
	}
	var errs []error
	for i := range c.Buckets {
		errs = append(errs, s.changeOne(ctx, c, i))
	}
	return errors.Join(errs...)
}

// changeOne changes one bucket of a call. What its record is to say is written first: what is given
// back without a record could be given back twice.
func (s *Store) changeOne(ctx context.Context, c *dispatch.Call, i int) error {
	op := c.Op.Only(i)
	if op.Records != bucket.WithRecords || !c.Buckets[i].IsLimit() {
		return s.follow(ctx, c.Only(i, op))
	}
	op.Records = bucket.RecordsOnly
	record := c.Only(i, op)
	if err := s.follow(ctx, record); err != nil {
		return err
	}
	c.States[i] = record.States[0] // what was written down, of a full bucket too
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
	return s.follow(ctx, c.Only(i, op))
}

// follow has a call on one bucket done. It sends the call again, until the context ends, if the
// hash slot moves faster than the client follows.
func (s *Store) follow(ctx context.Context, c *dispatch.Call) error {
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

// doEach has an operation done on each of the buckets, one after another: go-redis follows a hash
// slot to its new node at once for a command that is sent alone, and after a pause for several. It
// sets the states of the call, and returns the calls that it made, up to the first that failed.
func (s *Store) doEach(ctx context.Context, c *dispatch.Call, op bucket.Op) (calls []*dispatch.Call, err error) {
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

// fitting returns how many of the charges the buckets of all calls have room for.
func fitting(charges int64, calls ...*dispatch.Call) int64 {
	for _, one := range calls {
		charges = one.Buckets[0].Fit(one.States[0].Level, charges, one.Op.N)
	}
	return charges
}

// takeEach looks at each bucket, and then charges each if all have room. It gives back what it took
// if another call has taken the room of a bucket meanwhile, or if one fails.
func (s *Store) takeEach(ctx context.Context, c *dispatch.Call) error {
	if !s.migration.background.Begin() {
		return dispatch.ErrClosed
	}
	defer s.migration.background.Done()
	looks, err := s.doEach(ctx, c, bucket.Peek(c.Op.N))
	if err != nil {
		return err
	}
	c.Sent = looks[0].Sent
	charges := fitting(c.Op.Charges, looks...)
	if charges == 0 {
		return nil
	}
	c.Op.Charges = charges
	takes, err := s.doEach(ctx, c, c.Op)
	kept := int64(0)
	if err == nil {
		kept = fitting(charges, takes...)
		c.Attempt.Doubt = kept < charges
	}
	var back []*dispatch.Call
	for i, one := range takes {
		if !one.Buckets[0].IsLimit() {
			continue
		}
		if n := fitting(charges, one) - kept; n > 0 {
			if kept == 0 { // the store tells how long to wait after the charge
				c.States[i].Soon, c.States[i].Wait = looks[i].States[0].Soon, looks[i].States[0].Wait
			}
			back = append(back, one.Only(0, s.returnOf(one, n)))
		}
	}
	if back != nil {
		s.migration.background.Detached(ctx, s.migration.timeout, func(ctx context.Context) {
			for _, one := range back {
				s.migration.changed(one.Key, one.Hash, s.follow(ctx, one)) // what cannot be given back stays taken
			}
		})
	}
	return err
}

// returnOf returns the operation that gives back charges of a call on one bucket.
func (s *Store) returnOf(one *dispatch.Call, charges int64) bucket.Op {
	n, taken := charges*one.Op.N, receipt.New(s.migration.timeout)
	taken.Fill(one.Sent, one.States)
	claims := taken.ClaimsAtOnce(one.Buckets, n, false, "")
	return bucket.Op{Verb: bucket.Return, N: n, Claims: claims, Records: bucket.WithRecords}
}

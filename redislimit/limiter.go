package redislimit

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/lease"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Limiter decides whether requests may pass, with buckets that all Limiters on
// the same server and Prefix share. Open and New make one. Its methods may be
// called from any number of goroutines.
type Limiter struct {
	opts    Options
	inForce atomic.Pointer[limitsInForce]
	client  Client
	server  *script.Server
	leases  *lease.Table
	watch   *away.Watch // notices that the server is away

	start         time.Time
	awayDecisions atomic.Int64
	events        sync.Mutex // one event at a time

	failing atomic.Pointer[failure] // of the last call; nil after a success
	evicts  atomic.Pointer[failure]
	clock   atomic.Pointer[failure]

	setMu sync.Mutex // one SetLimits at a time puts its limits in force

	evicted sync.Map // int64 keys that a node had evicted at the last look, by its run_id

	closed  atomic.Bool
	closing chan struct{}
	close   func() error   // once
	work    sync.WaitGroup // background goroutines
	workMu  sync.Mutex     // orders work.Add before work.Wait
}

var _ stint.Decider = (*Limiter)(nil)

// Open returns a Limiter whose buckets live at a Redis or Valkey server, a
// cluster or a sentinel's primary. The url is redis://HOST:PORT/DB,
// rediss://USER:PASSWORD@HOST:PORT, or unix:///PATH. Further addresses follow
// as ?addr=HOST:PORT&addr=HOST:PORT. With &master_set=NAME the addresses are
// sentinels, and the Limiter follows the primary that they call NAME. Sentinels
// that ask for a password need a Client of your own, and New.
//
// Open does not fail if the server is away: then Options.Away decides. Open fails if the server refuses the Limiter, or is too old.
func Open(url string, limits *stint.Limits, opts *Options) (*Limiter, error) {
	c, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := script.NewRueidis(url, c.Timeout, c.TLS)
	if err != nil {
		return nil, err
	}
	l, err := New(client, limits, opts)
	if err != nil {
		client.Close()
		return nil, err
	}
	return l, nil
}

// New returns a Limiter that uses the client, and closes it in Close. After an
// error the client still belongs to the caller.
func New(client Client, limits *stint.Limits, opts *Options) (*Limiter, error) {
	c, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Limiter{client: client, opts: c, start: time.Now(), closing: make(chan struct{})}
	l.close = sync.OnceValue(l.closeOnce)
	l.server = script.NewServer(client, script.Config{Timeout: c.Timeout, Replicas: c.Replicas, Plain: c.PlainKeys, Now: c.Now,
		Note: l.note, Closed: l.closed.Load})
	l.leases = lease.NewTable(lease.Config{
		MaxLease: c.MaxLease, RepeatDenials: c.RepeatDenials, Timeout: c.Timeout, Label: l.labeled,
		Elapsed: l.elapsed, Lease: l.lease, Begin: l.begin,
		Away: func(key stint.Key) bool { return l.watch.Under() && l.watch.Of(key).Away() },
	})
	l.watch = l.newWatch()
	if err := l.SetLimits(limits); err != nil {
		return nil, err
	}
	if err = l.look(); err == nil {
		err = l.server.TryScripts(l.opts.Prefix + ":probe")
		if l.server.IsCluster() && script.IsAway(err) { // one of its nodes
			err = nil
		}
	}
	switch {
	case script.IsAway(err):
		l.watch.Whole.Begin(err)
	case err != nil:
		return nil, fmt.Errorf("redislimit: open: %w", err)
	default:
		l.watch.LoadShards()
	}
	l.work.Go(l.lookout)
	return l, nil
}

// Close waits for spends that are being undone, gives back the tokens of leases,
// and closes the client. Later calls return stint.ErrClosed. The buckets stay at
// the server, and Options.Away stays open.
func (l *Limiter) Close() error { return l.close() }

func (l *Limiter) closeOnce() error {
	l.workMu.Lock()
	l.closed.Store(true)
	l.workMu.Unlock()
	close(l.closing)
	l.work.Wait()
	l.leases.GiveBack(true)
	l.client.Close()
	return nil
}

// begin starts a goroutine that Close waits for. If the Limiter is closed,
// begin returns false instead.
func (l *Limiter) begin(f func()) bool {
	l.workMu.Lock()
	defer l.workMu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.work.Go(f)
	return true
}

// Now returns the server's time, as far as this machine knows it from the last
// round trip.
func (l *Limiter) Now() time.Time { return l.server.Time() }

// elapsed returns the time by the clock that measures the age of sightings and
// leases.
func (l *Limiter) elapsed() int64 {
	if l.opts.Now != nil {
		return script.Instant(l.opts.Now())
	}
	return int64(time.Since(l.start))
}

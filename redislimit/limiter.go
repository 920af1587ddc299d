package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// Limiter decides whether requests may pass, with buckets that all Limiters on
// the same server and Prefix share. Open and New make one. Its methods may be
// called from any number of goroutines.
type Limiter struct {
	client Client
	opts   Options
	inForce
	seen    *seen
	leases  *leases
	home    *home       // nil if no limit has AwayShare
	cluster atomic.Bool // keys must be asked for slot by slot
	lanes   lanes

	start time.Time
	ahead atomic.Int64 // server's time minus that of this machine

	outage               // of a single server: while it is away, no call waits for it
	shards  shards       // of a cluster
	awayNow atomic.Int32 // outages under way
	stats   counts
	events  sync.Mutex // one event at a time

	failing atomic.Pointer[failure] // of the last call; nil after a success
	evicts  atomic.Pointer[failure]
	evicted atomic.Int64 // keys evicted before the Limiter was made

	closed   atomic.Bool
	closing  chan struct{}
	close    sync.Once
	closeErr error
	work     sync.WaitGroup // background goroutines
	workMu   sync.Mutex     // orders work.Add before work.Wait
}

// inForce are the limits in force.
type inForce struct{ atomic.Pointer[limitsInForce] }

type limitsInForce struct {
	limits     *stint.Limits
	names      stint.Names
	generation atomic.Int64 // microseconds of the server when they were loaded; 0: unknown
}

type failure struct {
	err   error
	since time.Time
}

var _ stint.Decider = (*Limiter)(nil)

// Open returns a Limiter whose buckets live at a Redis or Valkey server, a
// cluster or a sentinel's primary. The url is redis://HOST:PORT/DB,
// rediss://USER:PASSWORD@HOST:PORT, or unix:///PATH. Further addresses follow
// as ?addr=HOST:PORT&addr=HOST:PORT. With &master_set=NAME the addresses are
// sentinels, and the Limiter follows the primary that they call NAME. Sentinels
// that ask for a password need a Client of your own, and New.
//
// Open does not fail if the server is away: Options.Away says how the Limiter
// then decides. Open fails if the server refuses the Limiter, or is too old.
func Open(url string, limits *stint.Limits, opts *Options) (*Limiter, error) {
	c, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := newRueidisClient(url, c.Timeout)
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
	l := &Limiter{client: client, opts: c, seen: newSeen(), leases: newLeases(), start: time.Now(),
		closing: make(chan struct{})}
	l.lanes.of = make(map[laneOf]*lane)
	if err := l.SetLimits(limits); err != nil {
		return nil, err
	}
	if l.home, err = openHome(&l.opts, limits.Names()); err != nil {
		return nil, err
	}
	switch err = l.look(true); {
	case isAway(err):
		l.outage.settled.Store(-1) // there may be debts of an earlier process
		l.beginAway(&l.outage, err)
	case err != nil:
		return nil, fmt.Errorf("redislimit: open: %w", errors.Join(err, l.home.close()))
	default:
		l.settleEarlier()
	}
	l.work.Go(l.lookout)
	return l, nil
}

// Limits returns the limits in force.
func (l *Limiter) Limits() *stint.Limits { return l.Load().limits }

// SetLimits puts other limits in force on this machine. A bucket that was made
// before waits no longer than an empty bucket of the new limit. Its time is
// shortened only once, when this machine first uses it. If machines have
// different limits, they do not shorten it in turns, which would refill it.
func (l *Limiter) SetLimits(limits *stint.Limits) error {
	if limits == nil {
		return errors.New("redislimit: limits are nil")
	}
	n := &limitsInForce{limits: limits, names: limits.Names()}
	for name, spec := range n.names {
		if spec.Parent != stint.Unknown {
			return fmt.Errorf("redislimit: limit %s: shares of a total (NameSpec.Parent) do not exist on a shared server",
				spec.Label)
		}
		d, _ := limits.Default(name)
		err := l.supports(d)
		for _, other := range limits.Overrides(name) {
			err = cmp.Or(err, l.supports(other))
		}
		if err != nil {
			return fmt.Errorf("%w: limit %s", err, n.names[name].Label)
		}
	}
	if err := l.home.declare(&l.opts, n.names); err != nil {
		return err
	}
	ctx, cancel := l.context()
	defer cancel()
	l.generation(ctx, n) // if it fails, the first decision asks again
	l.Store(n)
	l.leases.dropChanged(n)
	l.seen.clear()
	return nil
}

// supports returns nil if decisions can be as durable as the limit asks.
func (l *Limiter) supports(limit stint.Limit) error {
	if l.durability(limit) == stint.Synced {
		if _, ok := l.client.(SyncClient); !ok {
			return fmt.Errorf("redislimit: durability synced: %T is no SyncClient", l.client)
		}
	}
	return nil
}

func (l *Limiter) durability(limit stint.Limit) stint.Durability {
	return cmp.Or(limit.Durability, l.opts.Durability)
}

// generation returns the server's time when the limits were loaded, as the
// script wants it. If that time is unknown, it is the present one.
func (l *Limiter) generation(ctx context.Context, n *limitsInForce) (string, error) {
	if l.opts.Plain {
		return "", nil
	}
	if n.generation.Load() == 0 {
		micros, err := l.serverTime(ctx)
		if err != nil {
			if err = l.explain(err); errors.Is(err, ErrNoAnswer) { // TIME spends nothing
				err = fmt.Errorf("%w: no answer in time", ErrAway)
			}
			return "", err
		}
		n.generation.CompareAndSwap(0, max(1, micros))
	}
	return strconv.FormatInt(n.generation.Load(), 10), nil
}

func (l *Limiter) serverTime(ctx context.Context) (micros int64, err error) {
	if l.opts.Now != nil {
		return instant(l.opts.Now()) / 1000, nil
	}
	reply, err := l.client.Do(ctx, "TIME")
	if err != nil {
		return 0, err
	}
	if parts, ok := reply.([]any); ok && len(parts) == 2 {
		s, _ := parts[0].(string)
		us, _ := parts[1].(string)
		seconds, err1 := strconv.ParseInt(s, 10, 64)
		rest, err2 := strconv.ParseInt(us, 10, 64)
		if err1 == nil && err2 == nil {
			return seconds*1e6 + rest, nil
		}
	}
	return 0, fmt.Errorf("redislimit: server replied %v to TIME", reply)
}

// Now returns the server's time, as far as this machine knows it from the last
// round trip.
func (l *Limiter) Now() time.Time {
	if l.opts.Now != nil {
		return l.opts.Now()
	}
	return time.Now().Add(time.Duration(l.ahead.Load()))
}

func (l *Limiter) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), l.opts.Timeout)
}

// Health returns nil, or what is wrong now and since when: the server is away
// (ErrAway), the last call failed, or the server evicts buckets (ErrEvicts). It
// also returns what is wrong with the file at Options.Local.
func (l *Limiter) Health() error {
	errs := []error{l.awayHealth()}
	if l.home != nil {
		errs = append(errs, l.home.l.Health())
	}
	for _, f := range []*failure{l.failing.Load(), l.evicts.Load()} {
		if f != nil {
			errs = append(errs, fmt.Errorf("%w (since %s)", f.err, f.since.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}

// lookEvery is the time between two readings of the server's settings.
var lookEvery = time.Minute

func (l *Limiter) lookout() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.look(false)
		case <-l.closing:
			return
		}
	}
}

// look reads whether the server evicts keys, and whether it is new enough.
func (l *Limiter) look(first bool) error {
	ctx, cancel := l.context()
	defer cancel()
	var infos []any
	var err error
	if c, ok := l.client.(ClusterClient); ok {
		infos, err = c.DoEach(ctx, "INFO")
		l.cluster.Store(c.IsCluster() || l.cluster.Load())
		l.loadShards()
	} else {
		var info any
		info, err = l.client.Do(ctx, "INFO")
		infos = []any{info}
	}
	if err != nil {
		err = l.explain(err)
		l.note(err)
		return err
	}
	var wrong error
	evicted := int64(0)
	for _, info := range infos {
		text, _ := info.(string)
		fields := infoFields(text)
		if v := fields["redis_version"]; v != "" {
			if major, err := strconv.Atoi(strings.Split(v, ".")[0]); err == nil && major < 5 {
				return fmt.Errorf("server is Redis %s, want 5.0 or later", v)
			}
		}
		n, _ := strconv.ParseInt(fields["evicted_keys"], 10, 64)
		evicted += n
		if policy := fields["maxmemory_policy"]; policy != "" && policy != "noeviction" && fields["maxmemory"] != "0" {
			wrong = fmt.Errorf("%w: maxmemory-policy is %s, want noeviction", ErrEvicts, policy)
		}
	}
	if first {
		l.evicted.Store(evicted)
	} else if n := evicted - l.evicted.Load(); n > 0 {
		wrong = fmt.Errorf("%w: %d keys evicted", cmp.Or(wrong, ErrEvicts), n)
	}
	setFailure(&l.evicts, wrong, l.Now())
	return nil
}

func infoFields(info string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// note remembers how the last call ended, for Health.
func (l *Limiter) note(err error) { setFailure(&l.failing, err, l.Now()) }

func setFailure(at *atomic.Pointer[failure], err error, now time.Time) {
	old := at.Load()
	switch {
	case err == nil && old == nil:
	case err == nil:
		at.Store(nil)
	case old == nil:
		at.Store(&failure{err, now})
	default:
		at.Store(&failure{err, old.since})
	}
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

// Close waits for spends that are being undone, gives back the tokens of leases,
// and closes the client and the file at Options.Local. Later calls return
// stint.ErrClosed. The buckets stay at the server.
func (l *Limiter) Close() error {
	l.close.Do(func() {
		l.workMu.Lock()
		l.closed.Store(true)
		l.workMu.Unlock()
		close(l.closing)
		l.work.Wait()
		l.giveBack(l.leases.ended(l, true))
		l.client.Close()
		l.closeErr = l.home.close()
	})
	return l.closeErr
}

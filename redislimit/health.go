package redislimit

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

type failure struct {
	err   error
	since time.Time
}

// Health returns nil, or what is wrong now and since when: the server is away
// (ErrAway), the last call failed, or the server evicts buckets (ErrEvicts). The
// health of Options.Away is its own.
func (l *Limiter) Health() error {
	errs := []error{l.awayHealth()}
	for _, f := range []*failure{l.failing.Load(), l.evicts.Load(), l.clock.Load()} {
		if f != nil {
			errs = append(errs, fmt.Errorf("%w (since %s)", f.err, f.since.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}

// lookEvery is the time between two readings of the server's settings.
var lookEvery = time.Minute

// lookout reads the settings, and returns the tokens of leases that have ended, until closing.
func (l *Limiter) lookout() {
	look, leases := time.Tick(lookEvery), time.Tick(max(l.opts.MaxLease/4, 10*time.Millisecond))
	for {
		select {
		case <-look:
			l.look()
			l.watch.LoadShards()
		case <-leases:
			l.leases.GiveBack(false)
		case <-l.closing:
			return
		}
	}
}

// look reads whether the server is a cluster, evicts keys, is new enough, and has
// the right time. Each question has its own Timeout.
func (l *Limiter) look() error {
	nodes, err := l.server.Info()
	if err != nil {
		l.note(err)
		return err
	}
	var wrong error
	evicted := int64(0) // keys, since the last look at each node
	for _, fields := range nodes {
		if v := fields["redis_version"]; v != "" {
			if major, err := strconv.Atoi(strings.Split(v, ".")[0]); err == nil && major < 5 {
				return fmt.Errorf("server is Redis %s, want 5.0 or later", v)
			}
		}
		if policy := fields["maxmemory_policy"]; policy != "" && policy != "noeviction" && fields["maxmemory"] != "0" {
			wrong = fmt.Errorf("%w: maxmemory-policy is %s, want noeviction", ErrEvicts, policy)
		}
		if n, err := strconv.ParseInt(fields["evicted_keys"], 10, 64); err == nil {
			if was, known := l.evicted.Swap(fields["run_id"], n); known {
				evicted += max(0, n-was.(int64))
			}
		}
	}
	if evicted > 0 {
		wrong = fmt.Errorf("%w: %d keys evicted", cmp.Or(wrong, ErrEvicts), evicted)
	}
	setFailure(&l.evicts, wrong, l.Now())
	if ahead, err := l.server.ClockAhead(); err == nil {
		wrong = nil
		if ahead.Abs() > maxClockError {
			word := "ahead of"
			if ahead < 0 {
				word = "behind"
			}
			wrong = fmt.Errorf("%w: the server's is %v %s this machine's", ErrClock, ahead.Abs().Round(time.Second), word)
		}
		setFailure(&l.clock, wrong, l.Now())
	}
	return nil
}

// maxClockError is the difference of two clocks from which on Health reports it.
const maxClockError = 10 * time.Second

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

// awayHealth returns an error if the server is away. It says since when, and
// how this machine decides.
func (l *Limiter) awayHealth() error {
	since, _ := l.watch.TimeAway()
	if since.IsZero() {
		return nil
	}
	says := "Options.Away decides"
	switch l.opts.Away {
	case nil:
		says = "decisions are errors"
	case AwayOpen:
		says = "requests pass without a limit"
	}
	return fmt.Errorf("%w (since %s): %s", ErrAway, since.UTC().Format(time.RFC3339), says)
}

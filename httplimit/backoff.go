package httplimit

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/settle"
)

// The shortest and the longest hold after a refusal that gives no time.
const (
	firstBackoff = time.Second
	lastBackoff  = time.Hour
)

// refusal is a bucket's last refusal that gave no time.
type refusal struct {
	wait  time.Duration
	until time.Time
	total time.Duration // all waits since the last success
}

// obey holds the bucket for as long as the response to a request asks.
func (t *Transport) obey(key stint.Key, sent time.Time, res *http.Response) error {
	now, most := t.Limiter.Now(), cmp.Or(t.MaxHold, 24*time.Hour)
	wait, refused := askedToWait(res, now)
	if !refused && res.StatusCode < 400 {
		if err := t.endBackOff(key, sent); err != nil {
			return err
		}
	}
	until, known := time.Time{}, false
	if t.Backoff != nil {
		until, known = t.Backoff(res)
	}
	switch {
	case known:
		wait = until.Sub(now)
	case refused && wait == 0:
		wait = t.backOff(key, sent, now, min(most, lastBackoff))
	}
	if wait <= 0 {
		return nil
	}
	_, err := t.Limiter.ExtendHold(key, now.Add(min(wait, most)))
	return err
}

// backOff returns how long to stay away after a refusal that gives no time.
// Each such refusal doubles the time, up to most. If the request was sent
// before the last such hold ended, backOff returns the rest of that hold.
func (t *Transport) backOff(key stint.Key, sent, now time.Time, most time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.refusals[key]
	if sent.Before(last.until) {
		return last.until.Sub(now)
	}
	if len(t.refusals) >= max(t.sweepAt, 1000) {
		t.sweepLocked(now)
	}
	if t.refusals == nil {
		t.refusals = make(map[stint.Key]refusal)
	}
	wait := min(max(2*last.wait, firstBackoff), most)
	t.refusals[key] = refusal{wait, now.Add(wait), last.total + wait}
	return wait
}

// maxRefusals is how many buckets a Transport remembers to have refused.
const maxRefusals = 1 << 16

// sweepLocked forgets the refusals whose holds ended over an hour ago. Others
// still count, because the time doubles even if the host is asked only a while
// after its hold. If too many are left, it forgets the half that ended first.
// The next sweep is so late that a refusal costs the same, however many buckets
// refuse.
func (t *Transport) sweepLocked(now time.Time) {
	over := now.Add(-lastBackoff)
	if len(t.refusals) >= maxRefusals {
		ends := make([]time.Time, 0, len(t.refusals))
		for _, f := range t.refusals {
			ends = append(ends, f.until)
		}
		slices.SortFunc(ends, time.Time.Compare)
		if middle := ends[len(ends)/2]; middle.After(over) {
			over = middle
		}
	}
	maps.DeleteFunc(t.refusals, func(_ stint.Key, f refusal) bool { return !f.until.After(over) })
	t.sweepAt = min(2*len(t.refusals), maxRefusals)
}

// endBackOff ends the doubling after a success, unless the request was sent
// before the hold ended. It spends the tokens that came back during the hold,
// because the server would refuse a burst.
func (t *Transport) endBackOff(key stint.Key, sent time.Time) error {
	t.mu.Lock()
	last, ok := t.refusals[key]
	if ok = ok && !sent.Before(last.until); ok {
		delete(t.refusals, key)
	}
	t.mu.Unlock()
	if !ok {
		return nil
	}
	d, err := t.Limiter.Check(key, 0)
	if err != nil || d.Limit.Count == 0 || d.Limit.FollowsCalendar() { // then no token came back with time
		return err
	}
	_, _, err = settle.SpendUpTo(t.Limiter, key, int64(last.total/d.Limit.Interval()))
	return err
}

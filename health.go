package stint

import (
	"errors"
	"fmt"
	"time"
)

// Health returns nil, or everything that is wrong now, and since when. It
// reports failed saves and loads until one succeeds, a wrong clock, and what
// Store.Health says. It reports a save, or upkeep of the store, that takes
// longer than CommitTimeout, until the call ends. Health reads no disk, and
// waits for no call that does. Decisions go on from memory if they can.
func (l *Limiter) Health() error {
	f := l.flusher
	f.statusMu.Lock()
	unsaved := failure{f.status.Err, f.status.Since}
	if unsaved.err == nil {
		unsaved = f.commit
	}
	errs := []error{unsaved.says("nothing saved"), f.saving.overdue, f.upkeep.overdue, l.clock.Health()}
	f.statusMu.Unlock()
	if load := l.loadFailure.Load(); load != nil {
		errs = append(errs, load.says("no bucket loaded"))
	}
	return errors.Join(append(errs, l.store.Health())...)
}

// failure is the error of the last attempt, and the time of the first failure
// in a row.
type failure struct {
	err   error
	since time.Time
}

// says returns the failure as an error, or nil if there was none.
func (f failure) says(what string) error {
	if f.err == nil {
		return nil
	}
	return fmt.Errorf("stint: %s since %s: %w", what, f.since.UTC().Format(time.RFC3339), f.err)
}

// watch times the calls of one method of the store, one at a time. A call that
// takes longer than CommitTimeout is overdue. The flusher's statusMu
// guards it, except for the timer.
type watch struct {
	what    string
	timer   *time.Timer
	begun   time.Time // of the call under way, by the machine's clock
	since   time.Time // the same by the Limiter's clock; zero if there is none
	overdue error     // nil unless the call is overdue
}

// begin notes that a call begins. If it does not end in time, the timer calls
// late.
func (f *flusher) begin(w *watch) {
	now := time.Unix(0, f.clock.Now())
	f.statusMu.Lock()
	w.begun, w.since = time.Now(), now
	f.statusMu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(f.timeout, func() { f.late(w) })
	} else {
		w.timer.Reset(f.timeout)
	}
}

// late notes that a call is overdue, unless it ended as the timer fired.
func (f *flusher) late(w *watch) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if !w.since.IsZero() && time.Since(w.begun) >= f.timeout {
		err := fmt.Errorf("no answer from the store for %v", f.timeout)
		w.overdue = failure{err, w.since}.says(w.what + " under way")
		f.emit(Event{Kind: SaveOverdue, Err: w.overdue})
	}
}

// end notes how a call ended.
func (f *flusher) end(w *watch, err error) {
	w.timer.Stop()
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if w.overdue != nil {
		f.emit(Event{Kind: SaveEnded, Err: err})
	}
	w.since, w.overdue = time.Time{}, nil
	if gone := errors.Is(err, ErrGone); gone && !f.gone {
		f.gone = true
		f.emit(Event{Kind: FileGone, Err: err})
	} else if f.gone && err == nil && w == &f.saving {
		f.gone = false
		f.emit(Event{Kind: FileBack})
	}
}

// save saves changes for a flush or a commit, of which the last is the time. mu
// is held. With no changes it only finds out whether the store can save.
func (f *flusher) save(changes []Change) error {
	f.begin(&f.saving)
	var err error
	timed := f.timed
	if n := len(changes); n > 0 {
		timed = changes[n-1].TAT // now, because Save may reorder them
		err = saveClock(f.store, f.clock)
	}
	if err == nil {
		err = f.store.Save(changes)
	}
	if err == nil {
		f.timed = timed
	}
	f.end(&f.saving, err)
	return err
}

// record notes how one save of a flush ended.
func (f *flusher) record(buckets int, took time.Duration, err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	st := &f.status
	st.Last, st.Longest = took, max(st.Longest, took)
	if err == nil {
		st.Flushes++
		st.Buckets += int64(buckets)
		return
	}
	st.Failures++
	if st.Err == nil {
		st.Since = time.Unix(0, f.clock.Now())
		f.emit(Event{Kind: FlushFailed, Err: err})
	}
	st.Err = err
}

// committed notes how a commit ended, for Health.
func (f *flusher) committed(err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if err != nil && f.commit.err == nil {
		f.commit.since = time.Unix(0, f.clock.Now())
	}
	f.commit.err = err
}

// recovered notes that nothing is left unsaved.
func (f *flusher) recovered() {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	f.commit = failure{}
	if f.status.Err != nil {
		f.status.Err, f.status.Since = nil, time.Time{}
		f.emit(Event{Kind: FlushRecovered})
	}
}

package cache

import (
	"fmt"
	"time"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/since"
)

// FlushStats are counts and times of the flushes.
type FlushStats struct {
	Flushes  int64 // that wrote something
	Buckets  int64 // written or deleted by them
	Failures int64
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error     // why the last one failed; nil if it did not
	Since    time.Time // of the first failure in a row
}

// Stats are counts since New, and present sizes.
type Stats struct {
	Resident, Loads, Evictions int64
	Flush                      FlushStats
	Commit                     groupcommit.Stats
	Buckets, Leases            int64     // that commits wrote
	Saving                     time.Time // begin of the save under way, or zero
}

// Stats returns the counts.
func (c *Cache) Stats() Stats {
	st := Stats{
		Resident: c.resident.Load(), Loads: c.loads.Load(), Evictions: c.evicted.Load(),
		Commit: c.committer.Stats(), Buckets: c.committer.buckets.Load(), Leases: c.committer.leases.Load(),
	}
	f := c.flusher
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	st.Flush, st.Saving = f.status, f.saving.since
	return st
}

// Health returns what is wrong now with the saves and loads, and since when. It
// waits for no call of the store.
func (c *Cache) Health() []error {
	f := c.flusher
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	unsaved := since.Failure{Err: f.status.Err, Since: f.status.Since}
	if unsaved.Err == nil {
		unsaved = f.commit
	}
	errs := []error{unsaved.Says("nothing saved"), f.saving.overdue, f.upkeep.overdue}
	if load := c.loadFailure.Load(); load != nil {
		errs = append(errs, load.Says("no bucket loaded"))
	}
	return errs
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
		w.overdue = since.Failure{Err: err, Since: w.since}.Says(w.what + " under way")
		f.tell.Overdue(w.overdue)
	}
}

// end notes how a call ended.
func (f *flusher) end(w *watch, err error) {
	w.timer.Stop()
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	if w.overdue != nil {
		f.tell.Ended(err)
	}
	w.since, w.overdue = time.Time{}, nil
	f.tell.Called(w == &f.saving, err)
}

// save saves changes for a flush or a commit, of which the last is the time. mu
// is held. With no changes it only finds out whether the store can save.
func (f *flusher) save(changes []format.Entry) error {
	f.begin(&f.saving)
	var err error
	timed := f.timed
	if n := len(changes); n > 0 {
		timed = changes[n-1].TAT // now, because Save may reorder them
		err = f.store.saveClock(f.clock)
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
		f.tell.Failed(err)
	}
	st.Err = err
}

// committed notes how a commit ended, for Health.
func (f *flusher) committed(err error) {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	f.commit = f.commit.Next(err, time.Unix(0, f.clock.Now()))
}

// recovered notes that nothing is left unsaved.
func (f *flusher) recovered() {
	f.statusMu.Lock()
	defer f.statusMu.Unlock()
	f.commit = since.Failure{}
	if f.status.Err != nil {
		f.status.Err, f.status.Since = nil, time.Time{}
		f.tell.Recovered()
	}
}

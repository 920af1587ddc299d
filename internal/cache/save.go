package cache

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/since"
)

// flusher saves changed buckets to the store: once per interval, on request,
// and when the Limiter closes.
//
// A flush goes from shard to shard. In each, collect copies the dirty buckets
// and marks them clean. Decisions go on during the save, and make the buckets
// that they change dirty again. collect leaves out buckets that are in a commit,
// and buckets that need not be saved now: their limit is Memory, or a lease covers
// them. When it has enough for a save, the flush saves them and goes on from
// there. If the save fails, saved marks its buckets dirty again. A full bucket is
// deleted from the store, and then leaves memory.
//
// mu lets one save run at a time, a flush's or a commit's, so the store gets the
// TATs of a bucket in the order in which they were taken.
type flusher struct {
	directory *directory
	store     Store
	clock     *clock.Clock
	tell      Tell
	level     gcra.Level // of rules that name none
	resident  int64      // most buckets in memory
	interval  time.Duration
	timeout   time.Duration // after which a call of the store is overdue

	mu     sync.Mutex     // held during a save, by a flush or a commit
	closed bool           // Close has ended
	number uint64         // of the last part of a flush, 1 to 3
	round  int            // of the sweep
	timed  int64          // the last time that was saved, also by an earlier process
	spare  []format.Entry // memory for the next save
	space  place          // where the next flush for space begins
	trial  bool           // whether to save only a few buckets
	failed bool           // the last save of a flush failed

	waiting atomic.Int64  // callers that wait for space in memory
	part    chan struct{} // closed when a part of a flush ends; guarded by statusMu

	statusMu sync.Mutex
	status   SaveStats     // of flushes
	failing  since.Failure // of the last flush
	commit   since.Failure // of the last commit; none once a commit or a flush succeeded
	saving   watch         // of Store.Save
	upkeep   watch         // of Store.Maintain

	forAll   shared // flushes of everything that was spent before they begin
	forSpace shared // flushes that make space in memory

	stop, stopped chan struct{}
}

func newFlusher(t *directory, o Options) *flusher {
	return &flusher{
		directory: t, store: o.Store, clock: o.Clock, tell: o.Tell, level: o.Level, interval: o.Interval,
		resident: int64(o.MaxResident), part: make(chan struct{}),
		timeout: o.Timeout, saving: watch{what: "a save"}, upkeep: watch{what: "the upkeep of the store"},
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// SaveStats are counts and times of the flushes, or of the commits.
type SaveStats struct {
	Saves    int64 // that wrote something
	Buckets  int64 // written or deleted by them
	Failures int64
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error // why the last one failed; nil if it did not
}

// watch times the calls of one method of the store, one at a time. A call that
// takes longer than Options.Timeout is overdue. The flusher's statusMu
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

// save saves entries for a flush or a commit, of which the last is the time. mu
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
		st.Saves++
		st.Buckets += int64(buckets)
		return
	}
	st.Failures++
	if st.Err == nil {
		f.tell.Failed(err)
	}
	st.Err, f.failing = err, f.failing.Next(err, time.Unix(0, f.clock.Now()))
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
	if f.status.Err != nil {
		f.tell.Recovered()
	}
	f.status.Err, f.failing, f.commit = nil, since.Failure{}, since.Failure{}
}

// full reports whether memory has no space for another bucket.
func (f *flusher) full() bool { return f.directory.resident.Load() >= f.resident }

// shared has a flush that several calls wait for, and the next one.
type shared struct {
	run func() error

	mu        sync.Mutex // guards the others
	now, next *sharedFlush
}

type sharedFlush struct {
	done chan struct{}
	err  error // valid once done is closed
}

// flush returns a flush that has not begun or, if underWay is set, the one under
// way. At most one is under way and one is next, however many calls come while a
// disk hangs.
func (s *shared) flush(underWay bool) *sharedFlush {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.now == nil:
		s.now = &sharedFlush{done: make(chan struct{})}
		go s.runAll(s.now)
		return s.now
	case underWay:
		return s.now
	case s.next == nil:
		s.next = &sharedFlush{done: make(chan struct{})}
	}
	return s.next
}

// runAll carries out a flush, and those that come next.
func (s *shared) runAll(f *sharedFlush) {
	for f != nil {
		f.err = s.run()
		done := f.done
		s.mu.Lock()
		f = s.next
		s.now, s.next = f, nil
		s.mu.Unlock()
		close(done)
	}
}

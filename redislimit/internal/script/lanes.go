package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A lane has this many calls under way before a trip waits for one of them, and
// at most this many. With one call at a time, either the server or this process
// would be idle. While a round trip takes long, more are under way: if trips wait,
// another begins when they fill a call, or Server.Pace after the one before.
//
// In a simulation of 800 callers, a call at a server 20 ms away takes 20.7 ms on
// average, and 32.2 ms with two calls under way only. At 60 ms it is 61 ms and no
// error, against 82 ms and an error in six calls. Eight calls from the start take
// 24.9 ms at 20 ms, and nearby they share 2.6 times less. Without a timer after Pace,
// the slowest hundredth of 16 callers at 5 ms takes 11 % longer.
const (
	MinCalls = 2
	maxCalls = 32
)

// maxBatch is the most buckets of a call that trips share once maxCalls are under
// way. Of 30,000 callers who arrive at once, 30 ms away, it lets 10,097 be
// decided in half of their time, and 64 let 3,970.
const maxBatch = 4 * MaxTogether

// laneOf says which trips may share a call: trips to one slot, if all of them
// wait for replicas or none does.
type laneOf struct {
	slot   uint16
	synced bool
}

// lane orders the trips of a slot. A trip calls the server at once if its
// lane has a call free. Otherwise it waits. The first waiting trip leads the next
// call, which also takes trips that wait behind it. Trips leave a lane in the
// order in which they came. By a trip's deadline all earlier calls have ended, so
// it needs no timer, unless its caller had to wait for something else before.
// Server.mu guards it.
type lane struct {
	under   int       // calls under way
	last    time.Time // when the last one began
	waiting []*Trip
	buckets int  // of the waiting trips
	leaders int  // trips that lead a call under way, and have not taken others yet
	timed   bool // a timer will begin a call
}

// Waiting returns the number of trips that wait for a call to end.
func (s *Server) Waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range s.lanes {
		n += len(in.waiting)
	}
	return n
}

// Run asks the server, together with trips that wait at the same time. If half
// of a trip's time is over before its call begins, its error is ErrBusy.
func (s *Server) Run(t *Trip) {
	if t.Gate.Away() {
		t.Err = ErrNotYet
		return
	}
	now := time.Now()
	if s.late(t) {
		return
	}
	of := laneOf{synced: t.Synced}
	if s.Spreads() {
		of.slot = Slot(t.Requests[0].Key)
	}
	s.mu.Lock()
	in := s.lanes[of]
	if in == nil {
		in = new(lane)
		s.lanes[of] = in
	}
	if in.under < MinCalls || in.under < maxCalls && len(in.waiting) == 0 && s.pause(in, now) <= 0 {
		in.under++
		in.leaders++
		in.last = now
		s.mu.Unlock()
		s.lead(t, of, in)
		return
	}
	t.news = make(chan bool, 1)
	in.waiting = append(in.waiting, t)
	in.buckets += len(t.Requests)
	s.another(in, now)
	s.mu.Unlock()
	if s.leads(t, in, now) {
		s.lead(t, of, in)
	}
}

// pause returns the time until another call of the lane may begin for few
// callers. The caller holds Server.mu.
func (s *Server) pause(in *lane, now time.Time) time.Duration {
	return s.Pace - now.Sub(in.last)
}

// another begins another call if trips wait that no leader will take, and enough of
// them wait or the pause is over. Otherwise a timer does so after the pause. If those
// that a leader will take counted, up to one caller in a hundred more would fail at a
// server that stands still now and then, on a machine that is busy (TestDistant). The
// caller holds Server.mu.
func (s *Server) another(in *lane, now time.Time) {
	left, pause := in.buckets-in.leaders*MaxTogether, s.pause(in, now)
	switch {
	case left <= 0 || in.under >= maxCalls:
	case left >= MaxTogether || pause <= 0:
		in.under++
		in.begin(now)
	case !in.timed:
		in.timed = true
		time.AfterFunc(pause, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			in.timed = false
			s.another(in, time.Now())
		})
	}
}

// begin lets the first waiting trip lead a call. The caller holds Server.mu.
func (in *lane) begin(now time.Time) {
	in.leaders++
	in.last = now
	in.pop().news <- true
}

// leads waits until a trip has ended, or leads the next call. If the trip's caller had
// waited for something else before, calls that end later may be before it. Then leads
// removes the trip from the lane at its deadline, and ends it.
func (s *Server) leads(t *Trip, in *lane, arrived time.Time) bool {
	if arrived.Sub(t.Begun) < time.Millisecond {
		return <-t.news
	}
	select {
	case leads := <-t.news:
		return leads
	case <-time.After(time.Until(s.Deadline(t))):
	}
	s.mu.Lock()
	i := slices.Index(in.waiting, t)
	if i >= 0 {
		in.waiting = slices.Delete(in.waiting, i, i+1)
		in.buckets -= len(t.Requests)
	}
	s.mu.Unlock()
	if i >= 0 {
		t.Err = errLate
		return false
	}
	return <-t.news
}

// pop removes the first waiting trip. The caller holds Server.mu.
func (in *lane) pop() *Trip {
	t := in.waiting[0]
	in.waiting = in.waiting[1:]
	in.buckets -= len(t.Requests)
	return t
}

// lead makes a call with the trip and trips that wait behind it. Then the first
// trip that still waits leads the next call. If the trip is late, lead makes no
// call. If one trip may be the reason why nothing ran, each of them calls alone.
func (s *Server) lead(t *Trip, of laneOf, in *lane) {
	batch, again, late := []*Trip{t}, false, s.late(t)
	s.mu.Lock()
	if in.leaders--; !late {
		batch = in.take(t)
	}
	s.another(in, time.Now())
	s.mu.Unlock()
	if !late {
		again = s.call(batch)
	}
	s.mu.Lock()
	if len(in.waiting) > 0 {
		in.begin(time.Now())
	} else if in.under--; in.under == 0 && of.slot != 0 {
		delete(s.lanes, of)
	}
	s.mu.Unlock()
	for _, other := range batch[1:] {
		if !again {
			other.news <- false
			continue
		}
		go func() {
			s.callAlone(other)
			other.news <- false
		}()
	}
	if again {
		s.callAlone(t)
	}
}

var errLate = fmt.Errorf("%w: the calls before it took too long", ErrBusy)

// late reports whether half of a trip's time is over. If so, late ends the
// trip.
func (s *Server) late(t *Trip) bool {
	if time.Until(s.Deadline(t)) >= s.timeout(t.Synced)/2 {
		return false
	}
	t.Err = errLate
	return true
}

func (s *Server) callAlone(t *Trip) {
	if !s.late(t) {
		s.call([]*Trip{t})
	}
}

// take returns the trip, and as many waiting trips as fit into its call. The
// caller holds Server.mu.
func (in *lane) take(t *Trip) []*Trip {
	most := MaxTogether
	if in.under >= maxCalls {
		most = maxBatch
	}
	batch, buckets := []*Trip{t}, len(t.Requests)
	for len(in.waiting) > 0 {
		next := in.waiting[0]
		if buckets += len(next.Requests); buckets > most || next.Requests[0].Since != t.Requests[0].Since || next.Gate != t.Gate {
			break
		}
		batch = append(batch, in.pop())
	}
	return batch
}

// call makes one script call. It returns true if nothing ran and one trip of
// the batch may be the reason. Each trip must then call alone.
func (s *Server) call(batch []*Trip) (again bool) {
	gate := batch[0].Gate
	if gate.Away() { // it went away while they waited
		finish(batch, ErrNotYet)
		return false
	}
	first := slices.MinFunc(batch, func(a, b *Trip) int { return a.Begun.Compare(b.Begun) })
	ctx, cancel := context.WithDeadline(context.Background(), s.Deadline(first))
	err := s.Call(ctx, batch)
	cancel()
	if len(batch) > 1 && (refused(err) || errors.Is(err, ErrCrossSlot)) {
		return true
	}
	if err != nil {
		finish(batch, err)
	}
	for _, t := range batch {
		err = cmp.Or(err, t.Err)
	}
	s.Note(err)
	gate.Ended(err)
	return false
}

package cache

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// plainRule is a rule that has a rate.
const plainRule = 1

// limitsOf returns limits with one rule that has arithmetic, at that level.
func limitsOf(level gcra.Level) *Limits {
	plain := gcra.Rule{Level: level}
	plain.SetRolling(int64(time.Hour), 1, 1)
	return &Limits{Rules: []gcra.Rule{{}, plain}, Resolve: func(Key) (rule, byDefault uint32, err error) {
		return plainRule, plainRule, nil
	}}
}

// rig is a Cache whose time stands still, with a store in memory.
type rig struct {
	*Cache
	mu     sync.Mutex
	stored map[Key]int64
	saves  [][]format.Entry
	during func() // each save
	fails  error
}

func newRig(t *testing.T, level gcra.Level, resident int) *rig {
	r := &rig{stored: make(map[Key]int64)}
	now := time.Unix(1e9, 0)
	r.Cache = New(Options{
		Store: Store{
			Load:     func(name uint16, id string) (int64, error) { return r.stored[Key{name, id}], nil },
			Save:     r.save,
			All:      func(uint16) iter.Seq2[format.Entry, error] { return func(func(format.Entry, error) bool) {} },
			Maintain: func(time.Time) error { return nil },
		},
		Clock: clock.New(func() time.Time { return now }, nil, nil, gcra.EndOfTime),
		Tell: Tell{
			Failed: func(error) {}, Recovered: func() {}, Overdue: func(error) {}, Ended: func(error) {},
			Called: func(bool, error) {}, Stepped: func(time.Duration) {},
		},
		Level: gcra.Flushed, MaxResident: resident, Interval: time.Hour, Timeout: time.Minute,
	}, limitsOf(level))
	r.Start()
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func (r *rig) save(entries []format.Entry) error {
	if r.during != nil {
		r.during()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	r.saves = append(r.saves, slices.Clone(entries))
	for _, e := range entries {
		r.stored[Key{e.Name, e.ID}] = e.TAT
	}
	return nil
}

// now is the time of the rig.
func (r *rig) now() int64 { return r.flusher.clock.Now() }

// put spends from a bucket: it is full a minute later than before.
func (r *rig) put(id string) {
	s, h := r.Shard(1, id)
	s.Lock()
	defer s.UnlockFast()
	if i, ok := s.Find(1, id, h); ok {
		s.Write(i, s.At(i).TAT()+int64(time.Minute))
		return
	}
	s.InsertLocked(1, id, h, r.now()+int64(time.Minute), plainRule, table.Dirty)
}

// evictAll removes what may leave memory, and returns how many buckets stay.
func (r *rig) evictAll() int64 {
	for range 5 { // a removal may move a slot past the hand
		r.evictBetween(place{}, place{end: true}, r.now(), func(int) bool { return true })
	}
	return r.Stats().Resident
}

// TestEvictSpares: a bucket stays in memory while a flush or a commit saves it, until
// one of them has saved it, and while it has a queue.
func TestEvictSpares(t *testing.T) {
	r := newRig(t, gcra.Synced, 1<<20)
	saves := 0
	r.during = func() {
		saves++
		assert.EqualValues(t, 1, r.evictAll(), "it is being saved")
	}
	r.put("a")
	r.fails = io.ErrShortWrite
	require.ErrorIs(t, r.Flush(0), io.ErrShortWrite)
	require.EqualValues(t, 1, r.evictAll(), "it is not saved")
	r.fails = nil
	require.NoError(t, r.Flush(0))

	s, h := r.Shard(1, "a")
	s.Lock()
	i, _ := s.Find(1, "a", h)
	from := s.At(i).TAT()
	s.Write(i, r.now()) // it is full: that is saved, too
	in := r.SubmitLocked([]Change{{Key: Key{1, "a"}, Shard: s, Hash: h, From: from, To: r.now()}}, r.now())
	s.UnlockFast()
	require.NoError(t, r.Await(context.Background(), time.Now(), in))
	require.Equal(t, 4, saves, "a flush looks once more whether the file is in place")

	r.put("a")
	b, err := r.lockOne(Key{1, "a"}, ByRule)
	require.NoError(t, err)
	turn := &queue.Turn{At: r.now() + int64(time.Hour), Cost: 1}
	b.JoinLocked(turn, nil, r.now())
	s.Unlock()
	require.NoError(t, r.Flush(0))
	require.EqualValues(t, 1, r.evictAll(), "it has a queue")
	_, in = r.Cancel(Key{1, "a"}, turn, 0)
	require.NoError(t, r.Await(context.Background(), time.Now(), in))
	r.during = nil
	require.NoError(t, r.Flush(0))
	require.Zero(t, r.evictAll())
}

// TestFlushEvicts: while callers wait for space, a flush evicts what it saves,
// although each bucket was used before the save.
func TestFlushEvicts(t *testing.T) {
	r := newRig(t, gcra.Flushed, 1<<20)
	for i := range 100 {
		r.put(fmt.Sprint(i))
	}
	r.flusher.waiting.Store(1)
	_, err := r.flusher.flush(false, 0)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Stats().Resident, int64(30)) // a removal may move a slot past the hand
}

// TestEvictGivesUp: a search among buckets that all have to be saved ends soon,
// whatever their number. Among few buckets it finds the one that may go.
func TestEvictGivesUp(t *testing.T) {
	const resident = 8 * evictScan
	r := newRig(t, gcra.Flushed, resident)
	for i := range resident {
		r.put(fmt.Sprint(i))
	}
	shards := uint32(1) << (64 - r.shift) // of each class
	before := r.hand.Load()
	require.Zero(t, r.evict(r.now(), r.flusher.full))
	require.Less(t, r.hand.Load()-before, uint32(table.Classes)*shards, "not all shards")
	require.NoError(t, r.Flush(0))
	require.NoError(t, r.MakeSpace())
	require.Less(t, r.Stats().Resident, int64(resident))

	few := newRig(t, gcra.Flushed, 100)
	for i := range 100 {
		few.put(fmt.Sprint(i))
	}
	require.NoError(t, few.Flush(0))
	for i := range 99 {
		few.put(fmt.Sprint(i))
	}
	require.Equal(t, 1, few.evict(few.now(), few.flusher.full))
	s, h := few.Shard(1, "99")
	_, ok := s.Find(1, "99", h)
	require.False(t, ok)
}

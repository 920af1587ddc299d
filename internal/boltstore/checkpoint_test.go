package boltstore

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
)

// A store gives back what was last saved: wherever that lies, whatever is done
// for the file meanwhile, and after a crash, which leaves a sound file.
func TestStoreRemembers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(steps(6, 1)) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		s := openStore(t, storePath(t))
		var want map[Key]int64
		var keys []Key
		for i := range 400 {
			key := Key{[]uint16{1, 2, 300}[i/4%3], fmt.Sprint(i)}
			if i < 4 {
				key.ID = []string{"", "*", "**", "*!"}[i] // whose order is not that of their keys
			}
			keys = append(keys, key, Key{format.Holds, entry(key, 0).String()})
		}
		for step := range 180 {
			switch n := rnd.IntN(14); n {
			case 0:
				require.NoError(t, s.checkpoint())
			case 1:
				require.NoError(t, s.sweep(1))
			case 2:
				require.NoError(t, s.compactBusy())
			case 3:
				requireCrash(t, s, want)
				path := crash(t, s)
				require.NoError(t, s.Close())
				s = openStore(t, path)
			case 4:
				require.NoError(t, s.Close())
				s = openStore(t, s.path)
			case 5: // as when a checkpoint was interrupted
				s.journal.begin(s.saves.seq)
			case 6:
				_, err := s.Number(fmt.Sprint("label ", step))
				require.NoError(t, err)
			default:
				var changes []format.Entry
				for _, i := range rnd.Perm(len(keys))[:1+rnd.IntN(100)] {
					changes = append(changes, entry(keys[i], max(0, rnd.Int64N(1000)-200)*1000))
				}
				want = with(want, changes...)
				if s.together(); n%2 == 0 {
					s.alone()
				}
				require.NoError(t, s.Save(changes))
			}
			if step%10 == 9 {
				s.sameAs(t, want, keys...)
			}
		}
		require.NoError(t, s.Close())
	}
}

// Close does not wait for a long journal, whether its checkpoint has begun or
// not. The next Open goes on with it, in steps.
func TestCloseLeavesLongJournal(t *testing.T) {
	t.Parallel()
	changes := numbered(2, 0, 2*checkpointStep+1)
	for range steps(20, 2) { // the background may see that it is due before it sees Close
		for _, interrupted := range []bool{false, true} {
			s := openStore(t, storePath(t))
			s.put(t, changes...)
			s.setMost(1)
			if interrupted {
				s.journal.begin(s.saves.seq)
			}
			tx, err := s.inUse.file.DB.Begin(true) // no step ends before Close has begun
			require.NoError(t, err)
			go func() {
				<-s.stop
				tx.Rollback()
			}()
			s.wake()
			require.NoError(t, s.Close())
			s = openStore(t, s.path)
			require.EqualValues(t, len(changes), s.Stats().Journaled)
			before := commits(t, s.path)
			require.NoError(t, s.checkpoint())
			require.Equal(t, before+3, commits(t, s.path), "each has at most checkpointStep buckets")
			s.sameAs(t, with(nil, changes...))
			require.NoError(t, s.Close())
		}
	}
}

// What is past when it is applied is not stored, and what the file has of it is
// deleted.
func TestCheckpointDeletesWhatIsPast(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	past, lasting, unknown := Key{1, "past"}, Key{1, "lasting"}, Key{2, "unknown"}
	s.put(t, entry(past, 100), entry(lasting, 100))
	require.NoError(t, s.checkpoint())
	s.put(t, entry(past, 200), entry(lasting, 301), entry(unknown, 300))
	s.now.Store(300)
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.Stats().Journal)
	s.sameAs(t, map[Key]int64{lasting: 301}, past, unknown)
}

// A checkpoint that fails leaves the journal as it is, and the next one goes
// on.
func TestCheckpointFails(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	changes := numbered(1, 0, 40_000)
	s.put(t, changes...)
	s.fs.MaxSize = int(s.Stats().Bytes)
	require.Error(t, s.checkpoint())
	require.Error(t, s.Stats().Err)
	requireCrash(t, s, with(nil, changes...))
	s.fs.MaxSize = 0
	since := numbered(1, 39_000, 2_000)
	s.put(t, since...)
	require.NoError(t, s.checkpoint(), "what the last one left")
	require.NoError(t, s.checkpoint(), "what came since")
	require.NoError(t, s.Stats().Err)
	require.Zero(t, s.Stats().Journaled)
	s.sameAs(t, with(nil, append(changes, since...)...))
}

// A checkpoint that failed is not tried again at every save, and what comes
// meanwhile does not grow without bound.
func TestCheckpointThatFailsBacksOff(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	idle(t, s)
	s.journal.most = 64 << 10
	due := func() bool { return s.journal.is((*journalState).dueLocked) }
	s.put(t, entry(Key{1, strings.Repeat("x", bolt.MaxKeySize+1)}, 1)) // the tree cannot have it
	s.journal.idle = idleSweeps
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.True(t, due())
		require.Error(t, s.checkpoint())
		require.Equal(t, wait*time.Second, s.journal.backoff)
		require.False(t, due())
		s.journal.retry = time.Now()
		s.journal.idle = 0 // something is saved now and then
	}
	fillUp := func(next func(i int) []format.Entry) {
		t.Helper()
		var err error
		for i := 0; err == nil && i < 10_000; i++ {
			err = s.append(next(i))
		}
		require.ErrorContains(t, err, "is full: checkpoint: ")
	}
	fillUp(func(i int) []format.Entry { return numbered(2, 1<<40+i, 1) })
	require.InDelta(t, 2*s.journal.most, s.journal.fresh.Size(), 100)
	<-s.work // the background was told that it is due
	s.journal.fresh = journal.New()
	again := numbered(2, 0, 2_000)
	fillUp(func(int) []format.Entry { return again })
	require.InDelta(t, 2*journalMin, s.journal.bytes, 1<<20)

	s.journal.old = journal.New() // the tree can have it, after all
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.Stats().Err)
	require.False(t, due())
	s.journal.idle = idleSweeps
	require.True(t, due())
}

// The journal is applied once it is long, many times as long as its index, or
// left alone.
func TestCheckpointDue(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	idle(t, s)
	due := func() bool { return s.journal.is((*journalState).dueLocked) }
	require.False(t, due())
	s.put(t, entry(Key{1, "a"}, 1<<40))
	bytes, most := s.journal.bytes, s.journal.most
	for range idleSweeps - 1 {
		require.False(t, due())
		require.NoError(t, s.sweep(1))
	}
	s.together()
	require.NoError(t, s.Save(numbered(1, 0, 1)))
	require.NoError(t, s.sweep(1))
	require.False(t, due(), "something was saved")
	for range idleSweeps {
		require.NoError(t, s.sweep(1))
	}
	require.True(t, due(), "nothing is saved any more")
	s.journal.idle, s.journal.bytes = 0, journalMin+1
	require.True(t, due(), "it is long")
	s.journal.bytes, s.journal.most = bytes, 4
	require.True(t, due(), "it is more than may be kept in memory")
	s.journal.most = most
	require.False(t, due())
}

// Ids that do not repeat make no journal, and no index, that grows without
// bound, however fast they come. None is lost.
func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.setMost(256 << 10)
	const save = 2_000
	most := int64(0)
	for i := range 60 {
		s.together()
		require.NoError(t, s.Save(numbered(1, 1e9+i*save, save)))
		s.journal.mu.Lock()
		for !s.journal.checkpointing && s.journal.dueLocked() { // the background may be kept from beginning it
			s.journal.mu.Unlock()
			runtime.Gosched()
			s.journal.mu.Lock()
		}
		n := s.journal.fresh.Size()
		if s.journal.old != nil {
			n += s.journal.old.Size()
		}
		s.journal.mu.Unlock()
		most = max(most, n)
	}
	const more = 3 // saves: one that makes it due, and one each with which saves began to wait
	require.Less(t, most, int64(4*(256<<10)+more*save*32))
	requireCrash(t, s, with(nil, numbered(1, 1e9, 60*save)...))
}

// A few changes go to the tree when they come alone or in pairs, and to the
// journal when others come soon before them, or when it is not empty.
func TestSmallSaves(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.alone()
	for _, journaled := range []int64{0, 0, 1} {
		require.NoError(t, s.Save(numbered(1, 0, 1)))
		require.EqualValues(t, journaled, s.Stats().Journaled)
		s.saves.last = time.Now().Add(time.Hour) // the next comes soon
	}
	s.alone()
	require.NoError(t, s.Save(numbered(1, 1, 1)))
	require.EqualValues(t, 2, s.Stats().Journaled, "an older change must not come after this")
	require.NoError(t, s.checkpoint())
	s.alone()
	require.NoError(t, s.Save(numbered(1, 0, smallSave+1)))
	require.EqualValues(t, smallSave+1, s.Stats().Journaled)
}

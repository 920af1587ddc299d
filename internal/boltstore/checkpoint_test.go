package boltstore

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
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
// for the file meanwhile, and after a crash.
func TestStoreRemembers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(steps(6, 1)) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		s := openStore(t, storePath(t))
		want := make(map[Key]int64)
		var keys []Key
		for i := range 400 {
			key := Key{[]uint16{1, 2, 300}[i%3], fmt.Sprint(i)}
			switch i {
			case 0:
				key.ID = ""
			case 3:
				key.ID = "*"
			case 6:
				key.ID = "**"
			case 9:
				key.ID = "*!"
			}
			keys = append(keys, key, Key{format.Holds, entry(key, 0).String()})
		}
		for step := range 150 {
			context := []any{fmt.Sprintf("seed %d step %d", seed, step)}
			switch n := rnd.IntN(12); n {
			case 0:
				require.NoError(t, s.checkpoint())
			case 1:
				require.NoError(t, s.sweep(1))
			case 2:
				require.NoError(t, s.compactBusy())
			case 3:
				path := crash(t, s)
				require.NoError(t, s.Close())
				s = openStore(t, path)
			case 4:
				require.NoError(t, s.Close())
				s = openStore(t, s.path)
			case 5: // as when a checkpoint was interrupted
				s.journal.mu.Lock()
				if s.journal.old == nil && s.journal.fresh.Len() > 0 {
					s.journal.old, s.journal.oldSeq, s.journal.fresh = s.journal.fresh, s.saves.seq, journal.New()
				}
				s.journal.mu.Unlock()
			default:
				changes := make(map[Key]int64)
				for range 1 + rnd.IntN(100) {
					changes[keys[rnd.IntN(len(keys))]] = max(0, rnd.Int64N(1000)-200) * 1000
				}
				if s.together(); n%2 == 0 {
					s.alone()
				}
				var list []format.Entry
				for key, tat := range changes {
					list = append(list, entry(key, tat))
				}
				require.NoError(t, s.Save(list))
				maps.Copy(want, changes)
			}
			if step%10 == 9 {
				s.sameAs(t, want, keys, context...)
			}
		}
		require.NoError(t, s.Close())
	}
}

// What is saved while the journal is taken home, in steps, is not lost, and
// what is loaded is the newest.
func TestCheckpointInSteps(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	const n = 5*checkpointStep + 7
	changes := numbered(1, 0, n)
	want := with(nil, changes...)
	s.put(t, changes...)
	before := commits(t, s.path)
	done := make(chan error)
	go func() { done <- s.checkpoint() }()
	var keys []Key
	for i, running := 0, true; running; i++ {
		select {
		case err := <-done:
			require.NoError(t, err)
			running = false
		default:
			key := Key{1, fmt.Sprint(i * 37 % n)}
			want[key] = int64(n + i)
			s.put(t, entry(key, want[key]))
			keys = append(keys, key)
			require.Equal(t, want[key], load(t, s, key))
		}
	}
	require.GreaterOrEqual(t, commits(t, s.path)-before, uint64(6), "no step is of more than checkpointStep buckets")
	s.sameAs(t, want, keys)
	path := crash(t, s)
	require.NoError(t, s.Close())
	openStore(t, path).sameAs(t, want, keys)
}

// A checkpoint that Close interrupts is gone on with after the next Open.
func TestCheckpointInterruptedByClose(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	changes := numbered(2, 0, 20*checkpointStep)
	want := with(nil, changes...)
	s.put(t, changes...)
	tx, err := s.inUse.file.DB.Begin(true) // which it waits for: it is not through before Close comes
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- s.checkpoint() }()
	s.journal.mu.Lock()
	for !s.journal.checkpointing {
		s.journal.stepped.Wait()
	}
	s.journal.mu.Unlock()
	s.closing.Do(func() { // what Close does first, and not what it does then
		close(s.stop)
		require.NoError(t, tx.Rollback())
		<-s.stopped
	})
	require.NoError(t, <-done)
	require.NotNil(t, s.journal.old, "it was interrupted")
	require.NoError(t, s.inUse.file.Close())

	s = openStore(t, s.path)
	require.Equal(t, len(changes), s.journal.fresh.Len())
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.journal.fresh.Len())
	s.sameAs(t, want, nil)
}

// Close does not wait for a long journal, whether its checkpoint is about to
// begin or was interrupted.
func TestCloseLeavesLongJournal(t *testing.T) {
	t.Parallel()
	changes := numbered(2, 0, 2*checkpointStep+1)
	for range steps(20, 2) { // care may see that it is due before it sees Close
		for _, interrupted := range []bool{false, true} {
			s := openStore(t, storePath(t))
			s.put(t, changes...)
			s.journal.mu.Lock()
			s.journal.most = 1
			if interrupted {
				s.journal.old, s.journal.oldSeq, s.journal.fresh = s.journal.fresh, s.saves.seq, journal.New()
			}
			s.journal.mu.Unlock()
			tx, err := s.inUse.file.DB.Begin(true) // care waits for it: it is not through with all of it before Close comes
			require.NoError(t, err)
			go func() {
				<-s.stop
				tx.Rollback()
			}()
			s.wake()
			require.NoError(t, s.Close())
			s = openStore(t, s.path)
			require.Positive(t, s.Stats().Journaled)
			require.NoError(t, s.Close())
		}
	}
}

// What is past by the time it is taken home is not stored there, and what the
// file has of it is deleted.
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
	require.NoError(t, s.view(func(tx *bolt.Tx) error {
		if k, _ := tx.Bucket(format.JournalBucket).Cursor().First(); k != nil {
			t.Error("there is something in the journal")
		}
		if tx.Bucket(format.Decimal(1)).Get([]byte(past.ID)) != nil {
			t.Error("it is in the file still")
		}
		return nil
	}))
	s.sameAs(t, map[Key]int64{lasting: 301}, []Key{past, lasting, unknown})
}

// A checkpoint that fails leaves the journal as it is, and the next one goes
// on.
func TestCheckpointFails(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	want := make(map[Key]int64)
	save := func(from, n int) {
		changes := numbered(1, from, n)
		want = with(want, changes...)
		s.put(t, changes...)
	}
	save(0, 40_000)
	s.fs.MaxSize = int(s.Stats().Bytes)
	require.Error(t, s.checkpoint())
	require.Error(t, s.Stats().Err)
	s.sameAs(t, want, nil)
	path := crash(t, s)
	openStore(t, path).sameAs(t, want, nil)

	s.fs.MaxSize = 0
	save(1_000, 2_000)
	require.NoError(t, s.checkpoint(), "what the last one left")
	require.NoError(t, s.Stats().Err)
	require.NoError(t, s.checkpoint(), "what came since")
	require.Zero(t, s.Stats().Journaled)
	s.sameAs(t, want, nil)
}

// A checkpoint that failed is not tried again at every save, and what comes
// meanwhile does not grow without bound.
func TestCheckpointThatFailsBacksOff(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	idle(t, s)
	s.journal.most = 64 << 10
	bad := Key{1, strings.Repeat("x", bolt.MaxKeySize+1)} // which cannot go home
	s.put(t, entry(bad, 1))
	s.journal.idle = idleSweeps
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.True(t, s.journal.is((*journalState).dueLocked))
		require.Error(t, s.checkpoint())
		require.Equal(t, wait*time.Second, s.journal.backoff)
		require.False(t, s.journal.is((*journalState).dueLocked))
		s.journal.retry = time.Now()
		s.journal.idle = 0 // something is saved now and then
	}
	require.NoError(t, s.sweep(1))
	require.ErrorContains(t, s.Stats().Err, "checkpoint", "a sweep that succeeds says nothing of that")

	var err error
	saved := 0
	for ; err == nil && saved < 10_000; saved++ {
		err = s.append([]format.Entry{entry(Key{1, fmt.Sprintf("%024d", saved)}, 1)})
	}
	require.ErrorContains(t, err, "is full: checkpoint: ")
	require.InDelta(t, 2*s.journal.most, s.journal.fresh.Size(), 100)
	<-s.work // that it is due was told

	s.journal.fresh = journal.New()
	again := make([]format.Entry, 20_000) // a few buckets, again and again
	for i := range again {
		again[i] = entry(Key{1, fmt.Sprint("again", i%2000)}, 1)
	}
	for err, saved = nil, 0; err == nil && saved < 100; saved++ {
		err = s.append(again)
	}
	require.ErrorContains(t, err, "is full: checkpoint: ")
	require.InDelta(t, 2*journalMin, s.journal.bytes, 1<<20)

	s.journal.old = journal.New() // it can go home, after all
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.journal.backoff)
	require.NoError(t, s.Stats().Err)
	s.put(t, entry(Key{1, "next"}, 1))
	require.False(t, s.journal.is((*journalState).dueLocked))
	s.journal.idle = idleSweeps
	require.True(t, s.journal.is((*journalState).dueLocked))

}

// The journal goes home by itself once it is long, many times as long as what
// it comes to, or left alone.
func TestCheckpointDue(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	idle(t, s)
	require.False(t, s.journal.is((*journalState).dueLocked))
	s.put(t, entry(Key{1, "a"}, 1<<40))
	require.False(t, s.journal.is((*journalState).dueLocked))

	s.journal.bytes = journalMin + 1
	require.True(t, s.journal.is((*journalState).dueLocked))
	s.journal.bytes = 100

	s.journal.most = 4
	require.True(t, s.journal.is((*journalState).dueLocked), "it is more than may be kept in memory")
	s.journal.most = indexMin

	for range idleSweeps - 1 {
		require.False(t, s.journal.is((*journalState).dueLocked))
		require.NoError(t, s.sweep(1))
	}
	s.journal.idle = 0
	require.NoError(t, s.sweep(1))
	require.False(t, s.journal.is((*journalState).dueLocked), "something was saved")
	s.journal.idle = idleSweeps
	require.True(t, s.journal.is((*journalState).dueLocked))
	require.NoError(t, s.checkpoint())
	require.False(t, s.journal.is((*journalState).dueLocked))
}

// Ids that do not repeat make no journal, and no index, that grows without
// bound, however fast they come.
func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.setMost(256 << 10)
	const save = 2_000
	most, i := 0, 0
	for range 60 {
		var changes []format.Entry
		for range save {
			changes = append(changes, entry(Key{1, fmt.Sprintf("client-%09d", i*7919%1_000_003)}, int64(i+1)))
			i++
		}
		s.together()
		require.NoError(t, s.Save(changes))
		s.journal.mu.Lock()
		for !s.journal.checkpointing && s.journal.dueLocked() { // whoever begins it may be kept from that for long
			s.journal.mu.Unlock()
			runtime.Gosched()
			s.journal.mu.Lock()
		}
		n := int(s.journal.fresh.Size())
		if s.journal.old != nil {
			n += int(s.journal.old.Size())
		}
		s.journal.mu.Unlock()
		most = max(most, n)
	}
	const more = 3 // saves, at most: one that makes it due, and one each with which saves began to wait
	require.Less(t, most, 4*(256<<10)+more*save*32)
}

// A few changes go home when they come alone or in pairs, and to the journal
// when there is more company.
func TestSmallSaves(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.alone()
	for _, journaled := range []int64{0, 0, 1} {
		require.NoError(t, s.Save([]format.Entry{entry(Key{1, "b"}, 5)}))
		require.EqualValues(t, journaled, s.Stats().Journaled)
		s.saves.last = time.Now().Add(time.Hour) // the next comes soon
	}
	s.alone()
	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "c"}, 5)}))
	require.EqualValues(t, 2, s.Stats().Journaled, "the journal is not empty: an older change must not come after this")
	require.NoError(t, s.checkpoint())
	s.alone()
	require.NoError(t, s.Save(make([]format.Entry, 0)))
	s.alone()
	require.NoError(t, s.Save(numbered(1, 0, smallSave+1)))
	require.EqualValues(t, smallSave+1, s.Stats().Journaled)
}

// A commit is appended to the log: of the file, nothing else is written, until
// the log is full.
func TestCommitWritesTheLog(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 64, 512}[steps(0, 2):] {
		s := openStore(t, storePath(t))
		s.together()
		require.NoError(t, s.Save([]format.Entry{entry(Key{1, "the log is made"}, 1)}))
		before := readFile(t, s.path)
		made, i, full := commits(t, s.path), 0, 0
		for full < 3 {
			changes := make([]format.Entry, n)
			for j := range changes {
				i++
				changes[j] = entry(Key{1, fmt.Sprintf("%024d", i)}, int64(i))
			}
			log := s.inUse.file.LogState()
			at, end := log.Begin+log.At, log.Begin+format.LogSize
			size := int64(n*format.EntrySize(changes[0])+format.LogHeader+4+format.LogBlock) / format.LogBlock * format.LogBlock
			s.together()
			require.NoError(t, s.Save(changes))
			if at+size > end {
				full++
				require.Equal(t, made+uint64(full), commits(t, s.path))
				require.Zero(t, s.inUse.file.LogState().At, "it begins at its start again")
				before = readFile(t, s.path)
				continue
			}
			require.Equal(t, made+uint64(full), commits(t, s.path))
			if i/n%50 == 1 {
				after := readFile(t, s.path)
				require.True(t, bytes.Equal(before[:log.Begin], after[:log.Begin]))
				require.True(t, bytes.Equal(before[end:], after[end:]))
				require.True(t, bytes.Equal(before[at+size:end], after[at+size:end]))
				require.False(t, bytes.Equal(before[at:at+size], after[at:at+size]))
			}
		}
		info, err := os.Stat(s.path)
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(9<<20))
	}
}

// What the journal has comes once, in its place, and takes the place of what
// the tree has.
func TestAllMergesTheJournal(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	for _, id := range []string{"*", "*!", "b", "d", ""} {
		s.put(t, entry(Key{1, id}, 1))
	}
	require.NoError(t, s.checkpoint())
	for _, id := range []string{"*", "**", "a", "d", "e"} {
		s.put(t, entry(Key{1, id}, 2))
	}
	s.put(t, entry(Key{1, "b"}, 0), entry(Key{1, "c"}, 2))
	var got []string
	for e, err := range s.All(1) {
		require.NoError(t, err)
		got = append(got, fmt.Sprintf("%s=%d", e, e.TAT))
	}
	require.Equal(t, []string{"1:=1", "1:*!=1", "1:*=2", "1:**=2", "1:a=2", "1:c=2", "1:d=2", "1:e=2"}, got)
}

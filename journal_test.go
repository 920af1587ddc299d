package stint

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

var storeNames = Names{
	1: {Label: "one"}, 2: {Label: "two", Limit: Unlimited}, 300: {Label: "three hundred", Limit: Unlimited},
}

func openStore(t testing.TB, path string) *BoltStore {
	t.Helper()
	s, err := OpenBolt(path, storeNames, &BoltOptions{LockTimeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func storePath(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") }

// together has the next save go to the journal, and alone has it go home, whenever it comes.
func (s *BoltStore) together() { s.lastSave, s.company = time.Now().Add(time.Hour), 2 }
func (s *BoltStore) alone()    { s.lastSave = time.Time{} }

// compactBusy is Compact as it is where saves came after the journal was taken home: it copies what is in it.
func (s *BoltStore) compactBusy() error {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	return s.compactLocked()
}

// crash leaves a copy of the file, as a killed process would, and returns its path.
func crash(t testing.TB, s *BoltStore) string { return copyOf(t, s.path) }

// commits returns the number of the file's last transaction.
func commits(t testing.TB, path string) uint64 {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	m, err := readMeta(file)
	require.NoError(t, err)
	return m.tx
}

func sealed(seq uint64, changes ...Change) []byte {
	for record := range records(changes, maxRecord) {
		sealRecord(seq, record)
		return record
	}
	return nil
}

func TestJournalRecordRoundTrip(t *testing.T) {
	changes := []Change{
		{Key{1, "a"}, 1}, {Key{1, ""}, math.MaxInt64}, {Key{65535, strings.Repeat("x", maxIDLen)}, 0},
		{Key{Unknown, "1:held"}, 5}, {Key{1, "\x00\xff"}, math.MinInt64}, {Key{127, "n"}, -1}, {Key{128, strings.Repeat("y", 128)}, 1 << 40},
	}
	var got []Change
	for e, err := range entries(7, sealed(7, changes...)) {
		require.NoError(t, err)
		got = append(got, e.change())
	}
	require.Equal(t, changes, got)
}

func TestJournalRecordsAreSplit(t *testing.T) {
	var changes, got []Change
	for i := range 5_000 {
		changes = append(changes, Change{Key{1, fmt.Sprint("client-", i)}, int64(i)})
	}
	n := uint64(0)
	for record := range records(changes, maxRecord) {
		n++
		require.LessOrEqual(t, len(record), maxRecord+maxIDLen+16)
		sealRecord(n, record)
		for e, err := range entries(n, record) {
			require.NoError(t, err)
			got = append(got, e.change())
		}
	}
	require.Greater(t, n, uint64(2))
	require.Equal(t, changes, got)
}

// Whatever bit of a record is another, and whatever place it is found in, nothing of it is read.
func TestJournalRecordFlippedBits(t *testing.T) {
	record := sealed(1<<40+9, Change{Key{1, "first"}, 12345}, Change{Key{300, "second"}, 0})
	corrupt := func(seq uint64, record []byte) {
		n := 0
		for e, err := range entries(seq, record) {
			require.ErrorIs(t, err, ErrCorrupt)
			require.Zero(t, e)
			n++
		}
		require.Equal(t, 1, n)
	}
	for bit := range 8 * len(record) {
		flipped := slices.Clone(record)
		flipped[bit/8] ^= 1 << (bit % 8)
		corrupt(1<<40+9, flipped)
	}
	for bit := range 64 {
		corrupt((1<<40+9)^1<<bit, record)
	}
	for n := range record {
		corrupt(1<<40+9, record[:n])
	}
	corrupt(1<<40+9, append(slices.Clone(record), 0))
}

func FuzzJournalRecord(f *testing.F) {
	f.Add(uint64(1), sealed(1, Change{Key{1, "a"}, 1}, Change{Key{2, "bcd"}, 2}))
	f.Add(uint64(2), []byte{})
	f.Add(uint64(3), []byte{0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1})
	f.Add(uint64(4), bytes.Repeat([]byte{0}, 40))
	f.Add(uint64(5), []byte{0, 0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 1})
	f.Fuzz(func(t *testing.T, seq uint64, record []byte) {
		read := func() (es []entry, err error) {
			for e, err := range entries(seq, record) {
				if err != nil {
					require.Empty(t, es, "half of a record was read")
					return nil, err
				}
				es = append(es, e)
			}
			return es, nil
		}
		if _, err := read(); err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
		}
		if len(record) < 4 {
			return
		}
		sealRecord(seq, record) // as if that were what was written
		es, err := read()
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		size := 4
		x, want := newJournalIndex(), make(map[Key]int64)
		for _, e := range es {
			size += e.size
			x.put(e.change())
			want[e.change().Key] = e.tat
		}
		require.Equal(t, len(record), size)
		require.Equal(t, len(want), x.len())
		for key, tat := range want {
			got, ok := x.get(key)
			require.True(t, ok)
			require.Equal(t, tat, got)
		}
	})
}

// The index cannot be told apart from a map, even where hashes collide.
func TestJournalIndex(t *testing.T) {
	x, want := newJournalIndex(), make(map[Key]int64)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		key := Key{Name(rnd.IntN(3)), fmt.Sprint(rnd.IntN(3_000))}
		switch rnd.IntN(3) {
		case 0:
			tat, ok := x.get(key)
			wantTAT, wanted := want[key]
			require.Equal(t, wanted, ok)
			require.Equal(t, wantTAT, tat)
		default:
			tat := rnd.Int64N(3) * rnd.Int64()
			x.put(Change{key, tat})
			want[key] = tat
		}
	}
	for i := range 300_000 { // of so many, some have the half of a hash that is kept in common: ten or so
		key := Key{4, fmt.Sprint(i)}
		x.put(Change{key, int64(i)})
		want[key] = int64(i)
	}
	for key, wantTAT := range want {
		tat, ok := x.get(key)
		require.True(t, ok)
		require.Equal(t, wantTAT, tat)
	}
	got := make(map[Key]int64)
	for e := range x.all() {
		_, twice := got[e.change().Key]
		require.False(t, twice)
		got[e.change().Key] = e.tat
	}
	require.Equal(t, want, got)
	sorter := x.sorted(nil)
	var sorted []entry
	for sorter.left > 0 {
		sorted = append(sorted, sorter.take(1+rand.IntN(2000))...)
	}
	require.Len(t, sorted, len(want))
	for i, e := range sorted {
		require.Equal(t, want[e.change().Key], e.tat)
		require.True(t, i == 0 || sorted[i-1].change().Key.compare(e.change().Key) < 0)
	}
	require.Empty(t, sorter.take(1))
	require.Nil(t, x.sorted(func() bool { return true }))
}

// sameAs requires the store to have what want has: key by key, and one after the other.
func (s *BoltStore) sameAs(t testing.TB, want map[Key]int64, keys []Key, context ...any) {
	t.Helper()
	for _, key := range keys {
		tat, err := s.Load(key)
		require.NoError(t, err, context...)
		require.Equal(t, want[key], tat, context...)
	}
	for name := range map[Name]bool{Unknown: true, 1: true, 2: true, 300: true} {
		var got, all []Change
		for c, err := range s.All(name) {
			require.NoError(t, err, context...)
			got = append(got, c)
		}
		for key, tat := range want {
			if key.Name == name && tat != 0 {
				all = append(all, Change{key, tat})
			}
		}
		slices.SortFunc(all, func(a, b Change) int { return bytes.Compare(encodeID(a.Key.ID), encodeID(b.Key.ID)) })
		require.Equal(t, all, got, context...)
	}
}

// A store gives back what was last saved: wherever that lies, whatever is done for the file meanwhile, and after a crash.
func TestStoreRemembers(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		s := openStore(t, storePath(t))
		want := make(map[Key]int64)
		var keys []Key
		for i := range 400 {
			key := []Name{1, 2, 300}[i%3].Key(fmt.Sprint(i))
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
			keys = append(keys, key, Key{Unknown, key.String()})
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
				s.indexMu.Lock()
				if s.old == nil && s.fresh.len() > 0 {
					s.old, s.oldSeq, s.fresh = s.fresh, s.seq, newJournalIndex()
				}
				s.indexMu.Unlock()
			default:
				changes := make(map[Key]int64)
				for range 1 + rnd.IntN(100) {
					changes[keys[rnd.IntN(len(keys))]] = max(0, rnd.Int64N(1000)-200) * 1000
				}
				if s.together(); n%2 == 0 {
					s.alone()
				}
				var list []Change
				for key, tat := range changes {
					list = append(list, Change{key, tat})
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

// What is saved while the journal is taken home, in steps, is not lost, and what is loaded is the newest.
func TestCheckpointInSteps(t *testing.T) {
	s := openStore(t, storePath(t))
	const n = 5*checkpointStep + 7
	want := make(map[Key]int64)
	var changes []Change
	for i := range n {
		changes = append(changes, Change{Key{1, fmt.Sprintf("%06d", i)}, 1000})
	}
	require.NoError(t, s.append(changes))
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
			key := Key{1, fmt.Sprintf("%06d", i*37%n)}
			require.NoError(t, s.append([]Change{{key, int64(2000 + i)}}))
			want[key] = int64(2000 + i)
			keys = append(keys, key)
			tat, err := s.Load(key)
			require.NoError(t, err)
			require.EqualValues(t, 2000+i, tat)
		}
	}
	require.GreaterOrEqual(t, commits(t, s.path)-before, uint64(6), "no step is of more than checkpointStep buckets")
	for _, c := range changes {
		if _, ok := want[c.Key]; !ok {
			want[c.Key] = c.TAT
		}
	}
	s.sameAs(t, want, keys)
	path := crash(t, s)
	require.NoError(t, s.Close())
	openStore(t, path).sameAs(t, want, keys)
}

// A checkpoint that Close interrupts is gone on with after the next Open.
func TestCheckpointInterruptedByClose(t *testing.T) {
	s := openStore(t, storePath(t))
	want := make(map[Key]int64)
	var changes []Change
	for i := range 20 * checkpointStep {
		changes = append(changes, Change{Key{2, fmt.Sprint(i)}, int64(i + 1)})
		want[changes[i].Key] = changes[i].TAT
	}
	require.NoError(t, s.append(changes))
	tx, err := s.file.db.Begin(true) // which it waits for: it is not through before Close comes
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- s.checkpoint() }()
	s.indexMu.Lock()
	for !s.checkpointing {
		s.stepped.Wait()
	}
	s.indexMu.Unlock()
	s.closing.Do(func() { // what Close does first, and not what it does then
		close(s.stop)
		require.NoError(t, tx.Rollback())
		<-s.stopped
	})
	require.NoError(t, <-done)
	require.NotNil(t, s.old, "it was interrupted")
	require.NoError(t, s.file.close())

	s = openStore(t, s.path)
	require.Equal(t, len(changes), s.fresh.len())
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.fresh.len())
	s.sameAs(t, want, nil)
}

// Close does not wait for a long journal, whether its checkpoint is about to begin or was interrupted.
func TestCloseLeavesLongJournal(t *testing.T) {
	var changes []Change
	for i := range 2*checkpointStep + 1 {
		changes = append(changes, Change{Key{2, fmt.Sprint(i)}, int64(i + 1)})
	}
	for range 20 { // care may see that it is due before it sees Close
		for _, interrupted := range []bool{false, true} {
			s := openStore(t, storePath(t))
			require.NoError(t, s.append(changes))
			s.indexMu.Lock()
			s.indexMost = 1
			if interrupted {
				s.old, s.oldSeq, s.fresh = s.fresh, s.seq, newJournalIndex()
			}
			s.indexMu.Unlock()
			tx, err := s.file.db.Begin(true) // care waits for it: it is not through with all of it before Close comes
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

// What is past by the time it is taken home is not stored there, and what the file has of it is deleted.
func TestCheckpointDeletesWhatIsPast(t *testing.T) {
	s := openStore(t, storePath(t))
	past, lasting, unknown := Key{1, "past"}, Key{1, "lasting"}, Key{2, "unknown"}
	require.NoError(t, s.append([]Change{{past, 100}, {lasting, 100}}))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.append([]Change{{past, 200}, {lasting, 301}, {unknown, 300}}))
	s.now.Store(300)
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.Stats().Journal)
	require.NoError(t, s.view(func(tx *bolt.Tx) error {
		if k, _ := tx.Bucket(journalBucket).Cursor().First(); k != nil {
			t.Error("there is something in the journal")
		}
		if tx.Bucket(Name(1).decimal()).Get([]byte(past.ID)) != nil {
			t.Error("it is in the file still")
		}
		return nil
	}))
	s.sameAs(t, map[Key]int64{lasting: 301}, []Key{past, lasting, unknown})
}

// A checkpoint that fails leaves the journal as it is, and the next one goes on.
func TestCheckpointFails(t *testing.T) {
	s := openStore(t, storePath(t))
	want := make(map[Key]int64)
	save := func(from, n int) {
		var changes []Change
		for i := from; i < from+n; i++ {
			changes = append(changes, Change{Key{1, fmt.Sprint(i)}, int64(i + 1)})
			want[changes[len(changes)-1].Key] = int64(i + 1)
		}
		require.NoError(t, s.append(changes))
	}
	save(0, 40_000)
	s.file.db.MaxSize = int(s.Stats().Bytes)
	require.Error(t, s.checkpoint())
	require.Error(t, s.Stats().Err)
	s.sameAs(t, want, nil)
	path := crash(t, s)
	openStore(t, path).sameAs(t, want, nil)

	s.file.db.MaxSize = 0
	save(1_000, 2_000)
	require.NoError(t, s.checkpoint(), "what the last one left")
	require.NoError(t, s.Stats().Err)
	require.NoError(t, s.checkpoint(), "what came since")
	require.Zero(t, s.Stats().Journaled)
	s.sameAs(t, want, nil)
}

// A checkpoint that failed is not tried again at every save, and what comes meanwhile does not grow without bound.
func TestCheckpointThatFailsBacksOff(t *testing.T) {
	s := openStore(t, storePath(t))
	s.closing.Do(s.stopCare) // nobody does what is due
	defer s.file.close()
	s.indexMost = 64 << 10
	bad := Key{1, strings.Repeat("x", bolt.MaxKeySize+1)} // which cannot go home
	require.NoError(t, s.append([]Change{{bad, 1}}))
	s.tired = journalTired
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.True(t, s.checkpointDue())
		require.Error(t, s.checkpoint())
		require.Equal(t, wait*time.Second, s.backoff)
		require.False(t, s.checkpointDue())
		s.retry = time.Now()
		s.tired = 0 // something is saved now and then
	}
	require.NoError(t, s.sweep(1))
	require.ErrorContains(t, s.Stats().Err, "checkpoint", "a sweep that succeeds says nothing of that")

	var err error
	saved := 0
	for ; err == nil && saved < 10_000; saved++ {
		err = s.append([]Change{{Key{1, fmt.Sprintf("%024d", saved)}, 1}})
	}
	require.ErrorContains(t, err, "is full: checkpoint: ")
	require.InDelta(t, 2*s.indexMost, s.fresh.size, 100)
	<-s.work // that it is due was told

	s.fresh = newJournalIndex()
	again := make([]Change, 20_000) // a few buckets, again and again
	for i := range again {
		again[i] = Change{Key{1, fmt.Sprint("again", i%2000)}, 1}
	}
	for err, saved = nil, 0; err == nil && saved < 100; saved++ {
		err = s.append(again)
	}
	require.ErrorContains(t, err, "is full: checkpoint: ")
	require.InDelta(t, 2*journalMin, s.journal, 1<<20)

	s.old = newJournalIndex() // it can go home, after all
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.backoff)
	require.NoError(t, s.Stats().Err)
	require.NoError(t, s.append([]Change{{Key{1, "next"}, 1}}))
	require.False(t, s.checkpointDue())
	s.tired = journalTired
	require.True(t, s.checkpointDue())

	s.fresh.chunks = make([][]byte, 1<<(31-chunkBits))
	require.NotContains(t, s.append([]Change{{Key{1, "next"}, 1}}).Error(), "%!")
}

// The journal goes home by itself once it is long, many times as long as what it comes to, or left alone.
func TestCheckpointDue(t *testing.T) {
	s := openStore(t, storePath(t))
	s.closing.Do(func() { // nobody does what is due
		close(s.stop)
		<-s.stopped
	})
	defer s.file.close()
	require.False(t, s.checkpointDue())
	require.NoError(t, s.append([]Change{{Key{1, "a"}, 1 << 40}}))
	require.False(t, s.checkpointDue())

	s.journal = journalMin + 1
	require.True(t, s.checkpointDue())
	s.journal = 100

	s.indexMost = 4
	require.True(t, s.checkpointDue(), "it is more than may be kept in memory")
	s.indexMost = indexMost

	for range journalTired - 1 {
		require.False(t, s.checkpointDue())
		require.NoError(t, s.sweep(1))
	}
	s.tired = 0
	require.NoError(t, s.sweep(1))
	require.False(t, s.checkpointDue(), "something was saved")
	s.tired = journalTired
	require.True(t, s.checkpointDue())
	require.NoError(t, s.checkpoint())
	require.False(t, s.checkpointDue())
}

// Ids that do not repeat make no journal, and no index, that grows without bound, however fast they come.
func TestJournalIsBounded(t *testing.T) {
	s := openStore(t, storePath(t))
	s.indexMu.Lock()
	s.indexMost = 256 << 10
	s.indexMu.Unlock()
	const save = 2_000
	most, i := 0, 0
	for range 60 {
		var changes []Change
		for range save {
			changes = append(changes, Change{Key{1, fmt.Sprintf("client-%09d", i*7919%1_000_003)}, int64(i + 1)})
			i++
		}
		s.together()
		require.NoError(t, s.Save(changes))
		s.indexMu.Lock()
		for !s.checkpointing && s.checkpointDueLocked() { // whoever begins it may be kept from that for long
			s.indexMu.Unlock()
			runtime.Gosched()
			s.indexMu.Lock()
		}
		n := int(s.fresh.size)
		if s.old != nil {
			n += int(s.old.size)
		}
		s.indexMu.Unlock()
		most = max(most, n)
	}
	const more = 3 // saves, at most: one that makes it due, and one each with which saves began to wait
	require.Less(t, most, 4*(256<<10)+more*save*32)
}

// A program that opens the file, spends once and closes makes one commit, or two: the lease, and the exact TAT when it closes. It makes
// no log.
func TestOneCommit(t *testing.T) {
	path := storePath(t)
	limits := limitsOf(t, storeNames, map[Name]Limit{1: PerHour(5), 2: {Burst: 100, Count: 100, Period: time.Hour, Durability: Leased},
		300: {Burst: 5, Count: 5, Period: time.Hour, Durability: Synced}})
	once := func(key Key) uint64 {
		l, err := Open(path, limits, nil)
		require.NoError(t, err)
		before := commits(t, path)
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, l.Close())
		return commits(t, path) - before
	}
	once(Name(1).Key("first"))
	for range 3 {
		require.EqualValues(t, 1, once(Name(1).Key("x")))
		require.EqualValues(t, 2, once(Name(2).Key("y")))
		require.EqualValues(t, 1, once(Name(300).Key("z")))
	}
	require.Zero(t, openStore(t, path).file.log.begin)
}

// A few changes go home when they come alone or in pairs, and to the journal when there is more company.
func TestSmallSaves(t *testing.T) {
	s := openStore(t, storePath(t))
	s.alone()
	for _, journaled := range []int64{0, 0, 1} {
		require.NoError(t, s.Save([]Change{{Key{1, "b"}, 5}}))
		require.EqualValues(t, journaled, s.Stats().Journaled)
		s.lastSave = time.Now().Add(time.Hour) // the next comes soon
	}
	s.alone()
	require.NoError(t, s.Save([]Change{{Key{1, "c"}, 5}}))
	require.EqualValues(t, 2, s.Stats().Journaled, "the journal is not empty: an older change must not come after this")
	require.NoError(t, s.checkpoint())
	s.alone()
	require.NoError(t, s.Save(make([]Change, 0)))
	var many []Change
	for i := range smallSave + 1 {
		many = append(many, Change{Key{1, fmt.Sprint(i)}, 9})
	}
	s.alone()
	require.NoError(t, s.Save(many))
	require.EqualValues(t, smallSave+1, s.Stats().Journaled)
}

// A commit is appended to the log: of the file, nothing else is written, until the log is full.
func TestCommitWritesTheLog(t *testing.T) {
	for _, n := range []int{1, 64, 512} {
		s := openStore(t, storePath(t))
		s.together()
		require.NoError(t, s.Save([]Change{{Key{1, "the log is made"}, 1}}))
		before, err := os.ReadFile(s.path)
		require.NoError(t, err)
		made, i, full := commits(t, s.path), 0, 0
		for full < 3 {
			changes := make([]Change, n)
			for j := range changes {
				i++
				changes[j] = Change{Key{1, fmt.Sprintf("%024d", i)}, int64(i)}
			}
			at, end := s.file.log.begin+s.file.log.at, s.file.log.begin+logSize
			size := int64(n*entrySize(changes[0])+logHeader+4+logBlock) / logBlock * logBlock
			s.together()
			require.NoError(t, s.Save(changes))
			if at+size > end {
				full++
				require.Equal(t, made+uint64(full), commits(t, s.path))
				require.Zero(t, s.file.log.at, "it begins at its start again")
				before, err = os.ReadFile(s.path)
				require.NoError(t, err)
				continue
			}
			require.Equal(t, made+uint64(full), commits(t, s.path))
			if i/n%50 == 1 {
				after, err := os.ReadFile(s.path)
				require.NoError(t, err)
				require.True(t, bytes.Equal(before[:s.file.log.begin], after[:s.file.log.begin]))
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

// A save that failed may be in the journal all the same: what comes later is numbered behind it, and does not go home past it.
func TestSaveBehindOneThatFailed(t *testing.T) {
	s, err := OpenBolt(storePath(t), nil, &BoltOptions{maxSize: 1 << 20})
	require.NoError(t, err)
	defer s.Close()
	var many []Change
	for i := range 100_000 {
		many = append(many, Change{Key{1, fmt.Sprintf("%024d", i)}, 1 << 40})
	}
	before := s.seq
	require.Error(t, s.append(many))
	failed := s.seq
	require.Greater(t, failed, before)
	s.alone()
	require.NoError(t, s.Save([]Change{{Key{1, "a"}, 1 << 40}}))
	require.Equal(t, failed+1, s.seq, "it is in the journal, and behind")
}

// commitFails has the commits of the file fail, each when its meta page is written: a sync that failed leaves the file so, too. What
// is said comes from write, which is given what bbolt writes otherwise.
func commitFails(f *boltFile, write func(meta []byte, at int64) (int, error)) (restore func()) {
	field := reflect.ValueOf(f.db).Elem().FieldByName("ops").FieldByName("writeAt")
	ops := (*func(b []byte, at int64) (int, error))(field.Addr().UnsafePointer())
	writeAt := *ops
	*ops = func(b []byte, at int64) (int, error) {
		if at >= 2*pageSize {
			return writeAt(b, at)
		}
		return write(b, at)
	}
	return func() { *ops = writeAt }
}

// unsynced writes a meta page, and says that it failed.
func (f *boltFile) unsynced(meta []byte, at int64) (int, error) {
	n, err := f.file.WriteAt(meta, at)
	return n, errors.Join(err, errFault)
}

func tooManyForTheLog() (changes []Change) {
	for i := range commitSave + 1 {
		changes = append(changes, Change{Key{1, fmt.Sprint(i)}, 1 << 60})
	}
	return changes
}

// What a save that failed left in the journal does not come back over a later one: not by way of a checkpoint that was under way.
func TestSaveThatFailedDuringACheckpoint(t *testing.T) {
	s := openLogged(t)
	changes := tooManyForTheLog()
	require.NoError(t, s.append(changes[:1]))
	require.NoError(t, s.emptyLog())
	s.old, s.oldSeq, s.fresh = s.fresh, s.seq, newJournalIndex() // a checkpoint has begun
	restore := commitFails(s.file, s.file.unsynced)
	require.ErrorIs(t, s.append(changes), errFault)
	restore()
	require.NoError(t, s.checkpoint())
	key := changes[1].Key
	s.alone()
	require.NoError(t, s.Save([]Change{{key, 1<<60 + 1}}))
	for _, path := range []string{crash(t, s), s.path} {
		if path == s.path {
			require.NoError(t, s.Close())
		}
		got, err := found(t, path)
		require.NoError(t, err)
		require.EqualValues(t, int64(1<<60+1), got[key])
	}
}

// What such a save left is dropped.
func TestCheckpointDropsWhatFailed(t *testing.T) {
	s := openLogged(t)
	restore := commitFails(s.file, s.file.unsynced)
	require.ErrorIs(t, s.append(tooManyForTheLog()), errFault)
	restore()
	require.Positive(t, s.Stats().Journal)
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.Stats().Journal)
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, allOf(t, s), got)
}

package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/fsck"
)

// What was saved is there after a crash, each time, and nothing else: not what
// is left in the log of the rounds before.
func TestLogRounds(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	have := allOf(t, s)
	rnd := rand.New(rand.NewPCG(1, 9))
	rounds := make(map[uint64]bool)
	for step := range steps(120, 30) {
		rounds[s.inUse.file.LogState().Round] = true
		var changes []format.Entry
		for i := range rnd.Perm(300)[:1+rnd.IntN(100)] {
			tat := rnd.Int64N(3) * (1<<60 + int64(step))
			changes = append(changes, entry(Key{1, fmt.Sprint(strings.Repeat("long", rnd.IntN(100)), i)}, tat))
		}
		have = with(have, changes...)
		s.put(t, changes...)
		requireCrash(t, s, have)
		switch rnd.IntN(8) {
		case 0: // another process goes on with what a crash has left
			path := crash(t, s)
			require.NoError(t, s.Close())
			s = openStore(t, path)
		case 1:
			require.NoError(t, s.checkpoint())
		}
	}
	require.Greater(t, len(rounds), steps(5, 2))
}

// The last save may be cut short anywhere: then it is not there, and the one
// before it is.
func TestLogTornTail(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	first, second := entry(Key{1, "first"}, 1<<60), entry(Key{1, "second"}, 1<<61+1)
	s.put(t, first)
	have, before := allOf(t, s), readFile(t, s.path)
	at := s.inUse.file.LogState().Begin + s.inUse.file.LogState().At
	s.put(t, second)
	after := readFile(t, s.path)
	record := s.inUse.file.LogState().Pending[1].Data
	for n := range format.LogHeader + len(record) + 1 {
		for _, garbage := range []byte{0, 0xA5} { // what was there before
			image := bytes.Clone(before)
			copy(image[at:], bytes.Repeat([]byte{garbage}, format.LogBlock))
			copy(image[at:], after[at:][:n])
			want := have
			if n == format.LogHeader+len(record) {
				want = with(have, second)
			}
			got, err := found(t, writeFile(t, image))
			require.NoError(t, err)
			require.Equal(t, want, got, "%d bytes", n)
		}
	}
}

// A byte that changes in what others were saved behind is format.ErrCorrupt,
// and the others can be salvaged.
func TestLogDamaged(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	for _, id := range []string{"a", "b", "c"} {
		s.put(t, entry(Key{1, id}, 1<<60))
	}
	sound := readFile(t, s.path)
	long := format.LogHeader + len(s.inUse.file.LogState().Pending[1].Data)
	for i, lost := range []string{"a", "b"} {
		for at := range long + 1 {
			image := bytes.Clone(sound)
			image[s.inUse.file.LogState().Begin+int64(i*format.LogBlock+at)] ^= 1
			path := writeFile(t, image)
			got, err := found(t, path)
			if at >= long {
				require.NoError(t, err)
				require.Len(t, got, 4)
				continue
			}
			require.ErrorIs(t, err, format.ErrCorrupt, "byte %d", at)
			if at%10 == 0 {
				to := filepath.Join(t.TempDir(), "salvaged.db")
				salvaged, err := fsck.Salvage(path, to, longLock, func(int) error { return nil })
				require.NoError(t, err)
				require.Len(t, salvaged.Lost, 1)
				require.ErrorContains(t, salvaged.Lost[0], "a record of the log is damaged")
				got, err = found(t, to)
				require.NoError(t, err)
				require.Len(t, got, 3)
				require.NotContains(t, got, Key{1, lost})
			}
		}
	}

	for what, change := range map[string]func(tx *bolt.Tx) error{
		"round": func(tx *bolt.Tx) error {
			v := bytes.Clone(tx.Bucket(format.MetaBucket).Get(format.LogKey))
			v[5] ^= 1
			return tx.Bucket(format.MetaBucket).Put(format.LogKey, v)
		},
		"not behind its journal": func(tx *bolt.Tx) error {
			record := format.AppendEntry(make([]byte, 4), entry(Key{1, "later"}, 1))
			format.Seal(1<<40, record)
			return tx.Bucket(format.JournalBucket).Put(format.BigEndian(1<<40), record)
		},
		"half of a log": func(tx *bolt.Tx) error { return tx.Bucket(format.MetaBucket).Delete(format.LogKey) },
		"its log":       func(tx *bolt.Tx) error { return tx.Bucket(format.LogBucket).Put([]byte("more"), []byte("x")) },
	} {
		path := writeFile(t, sound)
		edit(t, path, change)
		_, err := found(t, path)
		require.ErrorIs(t, err, format.ErrCorrupt, what)
		require.ErrorContains(t, err, what)
	}
}

// A power cut: of what was written since the last sync any part may be on the
// disk. Every state that this may leave has all that was acknowledged, and of
// the save under way all or nothing.
func TestLogPowerCut(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	have := allOf(t, s)
	rnd := rand.New(rand.NewPCG(4, 2))
	appends, transactions := 0, 0
	for step := range steps(90, 15) {
		before, made, next := readFile(t, s.path), commits(t, s.path), have
		switch rnd.IntN(6) {
		case 0:
			require.NoError(t, s.checkpoint())
		case 1:
			_, err := s.Number(fmt.Sprint("label ", step))
			require.NoError(t, err)
		default:
			var changes []format.Entry
			for range 1 + rnd.IntN(150) {
				changes = append(changes, entry(Key{1, fmt.Sprint(strings.Repeat("long", 100), rnd.IntN(200))}, 1<<60+int64(step)))
			}
			slices.SortFunc(changes, format.Entry.CompareStored)
			changes = slices.Compact(changes)
			next = with(have, changes...)
			s.put(t, changes...)
		}
		after := readFile(t, s.path)
		before = append(before, make([]byte, len(after)-len(before))...)
		unit, logged := bboltpage.Size, bytes.Equal(before[:2*bboltpage.Size], after[:2*bboltpage.Size])
		if logged {
			unit = format.LogBlock
		}
		var changed []int
		for at := 0; at < len(after); at += unit {
			if at >= 2*bboltpage.Size && !bytes.Equal(before[at:][:unit], after[at:][:unit]) {
				changed = append(changed, at)
			}
		}
		image := func(some func(i int) bool) []byte {
			image := bytes.Clone(before)
			for i, at := range changed {
				if some(i) {
					copy(image[at:][:unit], after[at:])
				}
			}
			return image
		}
		check := func(what string, image []byte, may ...map[Key]int64) {
			got, err := foundUnverified(t, writeFile(t, image))
			require.NoError(t, err, "step %d, %s", step, what)
			for _, m := range may {
				if maps.Equal(got, m) {
					return
				}
			}
			require.Equal(t, may[0], got, "step %d, %s", step, what)
		}
		all := image(func(int) bool { return true })
		if logged {
			require.Equal(t, made, commits(t, s.path))
			appends++
			check("all", all, next)
			for range 4 {
				check("a part", image(func(int) bool { return rnd.IntN(2) == 0 }), have, next)
			}
			n := rnd.IntN(len(changed) + 1)
			check("the first", image(func(i int) bool { return i < n }), have, next)
			check("but the first", image(func(i int) bool { return i > 0 }), have)
		} else if commits(t, s.path) == made+1 {
			transactions++
			for range 3 { // the meta page comes after a sync
				check("a part", image(func(int) bool { return rnd.IntN(2) == 0 }), have)
			}
			check("all but the meta page", all, have)
			for _, n := range []int{20, 40, 70, 76} { // that of the older commit is torn
				torn := bytes.Clone(all)
				for i := range 2 {
					if page := after[i*bboltpage.Size:][:bboltpage.Size]; !bytes.Equal(page, before[i*bboltpage.Size:][:bboltpage.Size]) {
						copy(torn[i*bboltpage.Size:], page[:n])
					}
				}
				check("half of the meta page", torn, have, next)
			}
			check("all of it", after, next)
		}
		have = next
	}
	require.Greater(t, appends, steps(30, 4))
	require.Greater(t, transactions, steps(15, 1))
}

// A flipped bit in the newer meta page has bbolt take the older one. Where
// anything was logged since, that is format.ErrCorrupt, and can be salvaged;
// where nothing was, the file is as it was one transaction before, and what was
// logged by then is there.
func TestLogOfADamagedMetaPage(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	rnd := rand.New(rand.NewPCG(7, 1))
	var have, before map[Key]int64 // before the last transaction
	logged, other := 0, 0
	for step := range 60 {
		made := commits(t, s.path)
		last := allOf(t, s)
		c := entry(Key{1, fmt.Sprint(strings.Repeat("long", rnd.IntN(120)), rnd.IntN(10))}, 1<<60+int64(step))
		switch rnd.IntN(6) {
		case 0:
			require.NoError(t, s.checkpoint())
		case 1:
			s.alone()
			require.NoError(t, s.Save([]format.Entry{c}))
		case 2:
			_, err := s.Number(fmt.Sprint("label ", step))
			require.NoError(t, err)
		case 3: // another process goes on
			require.NoError(t, s.Close())
			s = openStore(t, s.path)
		default:
			s.put(t, c)
		}
		have = allOf(t, s)
		if commits(t, s.path) > made+1 || before == nil {
			before = have // not known, if there were several
			continue
		}
		image := readFile(t, s.path)
		image[newerMeta(image)+16+rnd.Int64N(64)] ^= 1 << rnd.IntN(8)
		path := writeFile(t, image)
		got, err := foundUnverified(t, path)
		if s.inUse.file.LogState().At > 0 {
			logged++
			require.ErrorIs(t, err, format.ErrCorrupt, "step %d", step)
			to := filepath.Join(t.TempDir(), "salvaged.db")
			salvaged, err := fsck.Salvage(path, to, longLock, func(int) error { return nil })
			require.NoError(t, err)
			require.ErrorIs(t, salvaged.Lost[0], format.ErrOldMeta)
			got, err = found(t, to)
			require.NoError(t, err)
			require.Equal(t, have[keyOf(c)], got[keyOf(c)], "what was logged last")
			continue
		}
		require.NoError(t, err, "step %d", step)
		if commits(t, s.path) == made+1 {
			other++
			require.Equal(t, last, got, "step %d", step)
		}
	}
	require.Greater(t, logged, 15)
	require.Greater(t, other, 15)
}

// A save is acknowledged once it is written, and synced after that.
func TestLogSyncsBeforeItAcknowledges(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	l := s.inUse.file.LogState()
	var saved atomic.Bool
	at, syncing, goOn := l.Begin+l.At, make(chan struct{}), make(chan struct{})
	synced := s.fs.SyncFile
	s.fs.SyncFile = func(file *os.File) error {
		close(syncing)
		<-goOn
		return synced(file)
	}
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	done := make(chan error)
	go func() {
		err := s.append([]format.Entry{entry(Key{1, "a"}, 1<<60)})
		saved.Store(true)
		done <- err
	}()
	select {
	case <-syncing:
	case <-done:
		t.Fatal("it was acknowledged, and not synced")
	}
	require.False(t, saved.Load())
	require.Equal(t, l.Round, binary.BigEndian.Uint64(readFile(t, s.path)[at:]), "what is synced was written")
	release()
	require.NoError(t, <-done)
	s.fs.SyncFile = synced
}

// Whoever reads the file, or a copy of it, finds what is in the log.
func TestLogIsSeenByAll(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	s.put(t, entry(Key{1, "a"}, 1<<60), entry(Key{1, "the log is made"}, 0), entry(Key{format.Holds, "1:a"}, 1<<60))
	s.put(t, entry(Key{2, "b"}, 1<<60))
	have := map[Key]int64{{1, "a"}: 1 << 60, {format.Holds, "1:a"}: 1 << 60, {2, "b"}: 1 << 60}
	require.Equal(t, have, allOf(t, s))
	require.EqualValues(t, 4, s.Stats().Journaled)
	require.Positive(t, s.Stats().Journal)
	v, err := verify(crash(t, s))
	require.NoError(t, err)
	require.Equal(t, fsck.Verified{Buckets: 1, Journaled: 4}, v)

	left := crash(t, s)
	content := readFile(t, left)
	got, err := found(t, left)
	require.NoError(t, err)
	require.Equal(t, have, got)
	to := filepath.Join(t.TempDir(), "salvaged.db")
	salvaged, err := fsck.Salvage(left, to, longLock, func(int) error { return nil })
	require.NoError(t, err)
	require.Equal(t, fsck.Salvaged{Buckets: 3}, salvaged)
	got, err = found(t, to)
	require.NoError(t, err)
	require.Equal(t, have, got)
	r, err := Open(left, nil, Options{ReadOnly: true})
	require.NoError(t, err)
	var b bytes.Buffer
	_, err = r.Snapshot(&b)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	got, err = found(t, writeFile(t, b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, have, got)
	now := readFile(t, left)
	require.True(t, bytes.Equal(content, now), "who only reads leaves the file as it is")

	b.Reset()
	_, err = s.Snapshot(&b)
	require.NoError(t, err)
	image := writeFile(t, b.Bytes())
	got, err = found(t, image)
	require.NoError(t, err)
	require.Equal(t, have, got)
	region := b.Bytes()[s.inUse.file.LogState().Begin:][:format.LogSize]
	require.True(t, bytes.Equal(make([]byte, format.LogSize), region), "what comes meanwhile is not in the copy")
	c := openStore(t, image)
	c.put(t, entry(Key{1, "more"}, 1)) // begins a round
	c.put(t, entry(Key{1, "more"}, 1))
	require.Positive(t, c.inUse.file.LogState().At)
	require.NoError(t, c.Close())

	s.put(t, entry(Key{2, "c"}, 1<<60))
	have[Key{2, "c"}] = 1 << 60
	require.NoError(t, s.Compact())
	require.Equal(t, have, allOf(t, s))
	requireCrash(t, s, have)
	s.put(t, entry(Key{2, "d"}, 1<<60))
	have[Key{2, "d"}] = 1 << 60
}

// A file without room for a log does without. A store that is closed leaves its
// log empty. A process that is killed after it has made the log leaves it to
// the next one that both meta pages have it.
func TestMakeLog(t *testing.T) {
	t.Parallel()
	files := boltfile.OS()
	files.MaxSize = 256 << 10
	s, err := Open(storePath(t), storeNames, Options{LockTimeout: longLock, FS: files})
	require.NoError(t, err)
	defer s.Close()
	for i := range 20 {
		s.put(t, entry(Key{1, fmt.Sprint(i)}, 1<<60))
	}
	require.True(t, s.inUse.file.LogState().Refused)
	requireCrash(t, s, allOf(t, s))

	s = openLogged(t)
	for i := range checkpointStep + 1 { // a long journal, which Close does not apply
		s.journal.fresh.Put(entry(Key{1, fmt.Sprint(i)}, 1<<60))
	}
	s.put(t, entry(Key{1, "a"}, 1<<60))
	require.NoError(t, s.Close())
	r, err := Open(s.path, nil, Options{ReadOnly: true, LockTimeout: longLock})
	require.NoError(t, err)
	defer r.Close()
	require.Empty(t, r.inUse.file.LogState().Pending)
	require.EqualValues(t, 1, r.Stats().Journaled)

	s = openStore(t, storePath(t))
	s.inUse.file.MakeLog()
	s = openStore(t, crash(t, s))
	for _, id := range []string{"a", "b"} {
		s.put(t, entry(Key{1, id}, 1<<60))
	}
	require.Positive(t, s.inUse.file.LogState().At)
	image := readFile(t, s.path)
	image[newerMeta(image)+30] ^= 1
	_, err = found(t, writeFile(t, image))
	require.ErrorIs(t, err, format.ErrCorrupt)
}

// newerMeta returns the offset of the meta page in force.
func newerMeta(image []byte) int64 {
	if binary.NativeEndian.Uint64(image[64:]) > binary.NativeEndian.Uint64(image[bboltpage.Size+64:]) {
		return 0
	}
	return bboltpage.Size
}

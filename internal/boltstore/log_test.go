package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/fsck"
	"github.com/stint-go/stint/internal/testlength"
)

// salvage returns the copy that Salvage makes of a file, and what is lost.
func salvage(t *testing.T, path string) (to string, lost []error) {
	t.Helper()
	to = storePath(t)
	v, err := fsck.Salvage(path, to, longLock, func(int) error { return nil })
	require.NoError(t, err)
	all, err := found(t, to)
	require.NoError(t, err)
	require.EqualValues(t, len(all), v.Buckets)
	return to, v.Lost
}

// A commit appends a record to the log, syncs it, and writes nothing else. When
// the log is full, a transaction empties it.
func TestLogCommit(t *testing.T) {
	t.Parallel()
	s, want := openLogged(t)
	var did []string
	sound := *s.fs
	s.fs.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
		did = append(did, "written")
		return sound.WriteAt(file, b, at)
	}
	s.fs.SyncFile = func(file *os.File) error { did = append(did, "synced"); return sound.SyncFile(file) }
	made, full := filecopy.Commits(t, s.path), uint64(0)
	for i, before := 0, filecopy.Read(t, s.path); full < uint64(testlength.Of(3, 1)); i++ {
		changes := numbered(2, 10_000+i, 1+i*testlength.Of(1, 15)%1024)
		want = with(want, changes...)
		log := s.inUse.file.LogState()
		s.together()
		did = nil
		require.NoError(t, s.Save(changes))
		after, at := filecopy.Read(t, s.path), s.inUse.file.LogState().At
		if at == 0 {
			full++
		} else {
			require.Equal(t, []string{"written", "synced"}, did, "before it is acknowledged")
			require.True(t, bytes.Equal(before[:log.Begin+log.At], after[:log.Begin+log.At]))
			require.True(t, bytes.Equal(before[log.Begin+at:], after[log.Begin+at:]))
		}
		require.Equal(t, made+full, filecopy.Commits(t, s.path))
		before = after
	}
	requireCrash(t, s, want)
	require.NoError(t, s.checkpoint())
	s.sameAs(t, want)
}

// After a power cut, any part of the writes since the last sync may be on the
// disk. In each such state, every acknowledged save is there. The save under
// way is there as a whole or not at all.
func TestLogPowerCut(t *testing.T) {
	t.Parallel()
	s, have := openLogged(t)
	rnd := rand.New(rand.NewPCG(4, 2))
	some := func(int) bool { return rnd.IntN(2) == 0 }
	appends, transactions := 0, 0
	for step := range testlength.Of(90, 10) {
		before, made, next := filecopy.Read(t, s.path), filecopy.Commits(t, s.path), have
		switch rnd.IntN(6) {
		case 0:
			require.NoError(t, s.checkpoint())
		case 1:
			_, err := s.Number(fmt.Sprint("label ", step))
			require.NoError(t, err)
		default:
			var changes []format.Entry
			for _, i := range rnd.Perm(200)[:1+rnd.IntN(150)] {
				changes = append(changes, entry(Key{1, fmt.Sprint(strings.Repeat("long", 100), i)}, 1<<60+int64(step)))
			}
			next = with(have, changes...)
			s.put(t, changes...)
		}
		after := filecopy.Read(t, s.path)
		before = append(before, make([]byte, len(after)-len(before))...)
		const metas = 2 * bboltpage.Size
		unit, logged := bboltpage.Size, bytes.Equal(before[:metas], after[:metas])
		if logged {
			unit = format.LogBlock
		}
		var changed []int
		for at := metas; at < len(after); at += unit {
			if !bytes.Equal(before[at:][:unit], after[at:][:unit]) {
				changed = append(changed, at)
			}
		}
		image := func(written func(i int) bool) []byte {
			image := bytes.Clone(before)
			for i, at := range changed {
				if written(i) {
					copy(image[at:][:unit], after[at:])
				}
			}
			return image
		}
		check := func(what string, image []byte, may ...map[Key]int64) {
			got, err := foundUnverified(t, filecopy.New(t, image))
			require.NoError(t, err, "step %d, %s", step, what)
			if !slices.ContainsFunc(may, func(m map[Key]int64) bool { return maps.Equal(got, m) }) {
				require.Equal(t, may[0], got, "step %d, %s", step, what)
			}
		}
		all := image(func(int) bool { return true })
		if logged {
			appends++
			check("all", all, next)
			for range 4 {
				check("a part", image(some), have, next)
			}
			n := rnd.IntN(len(changed) + 1)
			check("the first", image(func(i int) bool { return i < n }), have, next)
			check("all but the first", image(func(i int) bool { return i > 0 }), have)
		} else if filecopy.Commits(t, s.path) == made+1 {
			transactions++
			for range 3 { // the meta page comes after a sync
				check("a part", image(some), have)
			}
			check("all but the meta page", all, have)
			for _, n := range []int{20, 40, 70, 76} { // the new meta page is torn
				torn := bytes.Clone(all)
				at := newerMeta(after)
				copy(torn[at:][:n], after[at:])
				check("half of the meta page", torn, have, next)
			}
			check("all of it", after, next)
		}
		have = next
	}
	require.Greater(t, appends, testlength.Of(30, 2))
	require.Greater(t, transactions, testlength.Of(15, 1))
}

// If the newer meta page has a flipped bit, bbolt takes the older one. If the
// log has records since, that is ErrCorrupt, and they can be salvaged.
// Otherwise the file is as it was one transaction before.
func TestLogDamagedMetaPage(t *testing.T) {
	t.Parallel()
	s, have := openLogged(t)
	rnd := rand.New(rand.NewPCG(7, 1))
	logged, other := 0, 0
	for step := range testlength.Of(60, 30) {
		made, before := filecopy.Commits(t, s.path), have
		c := entry(Key{1, fmt.Sprint(strings.Repeat("long", rnd.IntN(120)), rnd.IntN(10))}, 1<<60+int64(step))
		switch rnd.IntN(6) {
		case 0:
			require.NoError(t, s.checkpoint())
		case 1:
			s.alone()
			require.NoError(t, s.Save([]format.Entry{c}))
			have = with(have, c)
		case 2:
			_, err := s.Number(fmt.Sprint("label ", step))
			require.NoError(t, err)
		case 3: // another process goes on
			require.NoError(t, s.Close())
			s = openStore(t, s.path)
		default:
			s.put(t, c)
			have = with(have, c)
		}
		image := filecopy.Read(t, s.path)
		image[newerMeta(image)+16+rnd.Int64N(64)] ^= 1 << rnd.IntN(8)
		path := filecopy.New(t, image)
		got, err := foundUnverified(t, path)
		if filecopy.Commits(t, s.path) > made+1 {
			continue // the test does not know the state one transaction before
		} else if s.inUse.file.LogState().At == 0 {
			require.NoError(t, err, "step %d", step)
			if filecopy.Commits(t, s.path) == made+1 {
				other++
				require.Equal(t, before, got, "step %d", step)
			}
			continue
		}
		logged++
		require.ErrorIs(t, err, format.ErrCorrupt, "step %d", step)
		to, lost := salvage(t, path)
		require.ErrorIs(t, lost[0], format.ErrOldMeta)
		got, err = found(t, to)
		require.NoError(t, err)
		require.Equal(t, have[keyOf(c)], got[keyOf(c)], "what was logged last")
	}
	require.Greater(t, logged, testlength.Of(15, 4))
	require.Greater(t, other, testlength.Of(15, 4))
}

// Meta pages of another time, such as those of a backup that was copied page by
// page, are found by the log, if it has a record of any later transaction.
func TestMetaPagesOfAnotherTime(t *testing.T) {
	t.Parallel()
	s, _ := openLogged(t)
	var images [][]byte
	for step := range 6 {
		s.put(t, entry(Key{1, "a"}, 1<<60+int64(step)))
		images = append(images, filecopy.Read(t, s.path))
		require.NoError(t, s.checkpoint())
	}
	damaged := 0
	for earlier, image := range images {
		for later := earlier + 1; later < len(images); later++ {
			both := bytes.Clone(images[later])
			copy(both, image[:2*bboltpage.Size])
			got, err := foundUnverified(t, filecopy.New(t, both))
			if err == nil { // the pages of the earlier tree have the later one
				require.Equal(t, 1<<60+int64(later), got[Key{1, "a"}], "pages of %d in %d", earlier, later)
			} else {
				require.ErrorIs(t, err, format.ErrCorrupt)
				damaged++
			}
		}
	}
	require.Greater(t, damaged, 5)
}

// TestLeftOver: Open removes copies that killed processes left beside the file,
// and nothing else.
func TestLeftOver(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "a"}, 1<<60)}))
	left := []string{".compact-123.tmp", ".snapshot-4.tmp"}
	others := []string{".compact-.tmp", ".compact-x.tmp", ".compact-12.old", ".snapshots", ".new-1.tmp", ".snapshot-20260101", ".corrupt-20260101T000000Z"}
	for _, name := range slices.Concat(left, others) {
		require.NoError(t, os.WriteFile(s.path+name, nil, 0o600))
	}
	for _, what := range []string{"compact", "snapshot"} {
		file, err := boltfile.CreateTemp(s.path, what)
		require.NoError(t, errors.Join(err, file.Close()))
		left = append(left, strings.TrimPrefix(file.Name(), s.path))
	}
	require.NoError(t, os.Mkdir(s.path+".compact-77.tmp", 0o700))
	_, err := Open(s.path, storeNames, Options{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrLocked)
	require.FileExists(t, s.path+left[0], "another process has the lock")
	require.NoError(t, s.Close())
	s, err = Open(s.path, storeNames, Options{ReadOnly: true, LockTimeout: longLock})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.FileExists(t, s.path+left[0], "a reader changes nothing")
	s = openStore(t, s.path)
	for _, name := range left {
		require.NoFileExists(t, s.path+name)
	}
	for _, name := range others {
		require.FileExists(t, s.path+name)
	}
	require.DirExists(t, s.path+".compact-77.tmp")
}

// newerMeta returns the offset of the meta page in force.
func newerMeta(image []byte) int64 {
	if binary.NativeEndian.Uint64(image[64:]) > binary.NativeEndian.Uint64(image[bboltpage.Size+64:]) {
		return 0
	}
	return bboltpage.Size
}

// A file that cannot grow has no log. Close leaves the log empty. If a process
// is killed after it made the log, the next process puts the log into both meta
// pages.
func TestMakeLog(t *testing.T) {
	t.Parallel()
	files := boltfile.OS()
	files.MaxSize = 256 << 10
	s := openOn(t, storePath(t), storeNames, files)
	for i := range 20 {
		s.put(t, numbered(1, i, 1)...)
	}
	require.True(t, s.inUse.file.LogState().Refused)
	requireCrash(t, s, with(nil, numbered(1, 0, 20)...))

	s, _ = openLogged(t)
	s.journal.fresh.Put(numbered(1, 0, checkpointStep+1)...) // a long journal, which Close does not apply
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
	for i := range 2 {
		s.put(t, numbered(1, i, 1)...)
	}
	require.Positive(t, s.inUse.file.LogState().At)
	image := filecopy.Read(t, s.path)
	image[newerMeta(image)+30] ^= 1
	_, err = found(t, filecopy.New(t, image))
	require.ErrorIs(t, err, format.ErrCorrupt)
}

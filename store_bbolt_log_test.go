package stint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// openLogged opens a file that has a log with nothing in it.
func openLogged(t testing.TB) *BoltStore {
	t.Helper()
	s := openStore(t, storePath(t))
	require.NoError(t, s.append([]Change{{Key{1, "the log is made"}, 1}}))
	require.NoError(t, s.checkpoint())
	require.Positive(t, s.file.log.begin)
	require.False(t, s.file.isLogged())
	return s
}

// found returns all that the file at path has, and leaves the file as it is.
func found(t testing.TB, path string) (map[Key]int64, error) {
	t.Helper()
	s, err := OpenBolt(path, nil, &BoltOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	_, err = s.Verify(nil)
	require.NoError(t, err)
	return allOf(t, s), nil
}

// apply makes of what was saved what is saved with the changes.
func apply(have map[Key]int64, changes ...Change) map[Key]int64 {
	have = maps.Clone(have)
	for _, c := range changes {
		if have[c.Key] = c.TAT; c.TAT == 0 {
			delete(have, c.Key)
		}
	}
	return have
}

func writeFile(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.db")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// What was saved is there after a crash, each time, and nothing else: not what is left in the log of the rounds before.
func TestLogRounds(t *testing.T) {
	s := openLogged(t)
	have := allOf(t, s)
	rnd := rand.New(rand.NewPCG(1, 9))
	rounds := make(map[uint64]bool)
	for step := range 120 {
		rounds[s.file.log.round] = true
		var changes []Change
		for i := range rnd.Perm(300)[:1+rnd.IntN(100)] {
			tat := rnd.Int64N(3) * (1<<60 + int64(step))
			changes = append(changes, Change{Key{1, fmt.Sprint(strings.Repeat("long", rnd.IntN(100)), i)}, tat})
		}
		have = apply(have, changes...)
		require.NoError(t, s.append(changes))
		got, err := found(t, crash(t, s))
		require.NoError(t, err)
		require.Equal(t, have, got, "step %d", step)
		switch rnd.IntN(8) {
		case 0: // another process goes on with what a crash has left
			path := crash(t, s)
			require.NoError(t, s.Close())
			s = openStore(t, path)
		case 1:
			require.NoError(t, s.checkpoint())
		}
	}
	require.Greater(t, len(rounds), 5)
}

// The last save may be cut short anywhere: then it is not there, and the one before it is.
func TestLogTornTail(t *testing.T) {
	s := openLogged(t)
	first, second := Change{Key{1, "first"}, 1 << 60}, Change{Key{1, "second"}, 1<<61 + 1}
	require.NoError(t, s.append([]Change{first}))
	have, before := allOf(t, s), copied(t, s)
	at := s.file.log.begin + s.file.log.at
	require.NoError(t, s.append([]Change{second}))
	after := copied(t, s)
	record := s.file.log.pending[1].record
	for n := range logHeader + len(record) + 1 {
		for _, garbage := range []byte{0, 0xA5} { // what was there before
			image := bytes.Clone(before)
			copy(image[at:], bytes.Repeat([]byte{garbage}, logBlock))
			copy(image[at:], after[at:][:n])
			want := have
			if n == logHeader+len(record) {
				want = apply(have, second)
			}
			got, err := found(t, writeFile(t, image))
			require.NoError(t, err)
			require.Equal(t, want, got, "%d bytes", n)
		}
	}
}

func copied(t testing.TB, s *BoltStore) []byte {
	t.Helper()
	b, err := os.ReadFile(s.path)
	require.NoError(t, err)
	return b
}

// A byte that changes in what others were saved behind is ErrCorrupt, and the others can be salvaged.
func TestLogDamaged(t *testing.T) {
	s := openLogged(t)
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, s.append([]Change{{Key{1, id}, 1 << 60}}))
	}
	sound := copied(t, s)
	long := logHeader + len(s.file.log.pending[1].record)
	for i, lost := range []string{"a", "b"} {
		for at := range long + 1 {
			image := bytes.Clone(sound)
			image[s.file.log.begin+int64(i*logBlock+at)] ^= 1
			path := writeFile(t, image)
			got, err := found(t, path)
			if at >= long {
				require.NoError(t, err)
				require.Len(t, got, 4)
				continue
			}
			require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
			if at%10 == 0 {
				to := filepath.Join(t.TempDir(), "salvaged.db")
				salvaged, err := Salvage(path, to, nil, nil)
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
			v := bytes.Clone(tx.Bucket(metaBucket).Get(logKey))
			v[5] ^= 1
			return tx.Bucket(metaBucket).Put(logKey, v)
		},
		"not behind its journal": func(tx *bolt.Tx) error {
			return tx.Bucket(journalBucket).Put(bigEndian(1<<40), sealed(1<<40, Change{Key{1, "later"}, 1}))
		},
		"half of a log": func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Delete(logKey) },
		"its log":       func(tx *bolt.Tx) error { return tx.Bucket(logBucket).Put([]byte("more"), []byte("x")) },
	} {
		path := writeFile(t, sound)
		edit(t, path, change)
		_, err := found(t, path)
		require.ErrorIs(t, err, ErrCorrupt, what)
		require.ErrorContains(t, err, what)
	}
}

// What an id looks like is not taken for a record.
func TestLogIsNotForged(t *testing.T) {
	s := openLogged(t)
	fake, _ := s.file.log.frame(s.seq+3, []Change{{Key{1, "forged"}, 1}})
	binary.BigEndian.PutUint64(fake, 12345) // the round is not known to who makes up an id
	id := string(fake[:50])
	pad := strings.Repeat("x", logBlock-logHeader-4-(1+1+8)-(1+2)) // so that the id begins with a block
	frame, _ := s.file.log.frame(s.seq+1, []Change{{Key{1, pad}, 1}, {Key{1, id}, 1}})
	require.Zero(t, bytes.Index(frame, fake[:50])%logBlock)
	b := make([]byte, logSize)
	copy(b, frame[logBlock:])
	records, end, err := readLog(b, s.file.log.round)
	require.NoError(t, err)
	require.Empty(t, records)
	require.Zero(t, end)
	records, _, _ = readLog(b, 12345)
	require.Len(t, records, 1, "it is one, but for the round")
}

// A power cut: of what was written since the last sync any part may be on the disk. Every state that this may leave has all that was
// acknowledged, and of the save under way all or nothing.
func TestLogPowerCut(t *testing.T) {
	s := openLogged(t)
	have := allOf(t, s)
	rnd := rand.New(rand.NewPCG(4, 2))
	appends, transactions := 0, 0
	for step := range 90 {
		before, made, next := copied(t, s), commits(t, s.path), have
		switch rnd.IntN(6) {
		case 0:
			require.NoError(t, s.checkpoint())
		case 1:
			_, err := s.Number(fmt.Sprint("label ", step))
			require.NoError(t, err)
		default:
			var changes []Change
			for range 1 + rnd.IntN(150) {
				changes = append(changes, Change{Key{1, fmt.Sprint(strings.Repeat("long", 100), rnd.IntN(200))}, 1<<60 + int64(step)})
			}
			slices.SortFunc(changes, func(a, b Change) int { return a.Key.compare(b.Key) })
			changes = slices.Compact(changes)
			next = apply(have, changes...)
			require.NoError(t, s.append(changes))
		}
		after := copied(t, s)
		before = append(before, make([]byte, len(after)-len(before))...)
		unit, logged := pageSize, bytes.Equal(before[:2*pageSize], after[:2*pageSize])
		if logged {
			unit = logBlock
		}
		var changed []int
		for at := 0; at < len(after); at += unit {
			if at >= 2*pageSize && !bytes.Equal(before[at:][:unit], after[at:][:unit]) {
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
			got, err := found2(t, writeFile(t, image))
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
					if page := after[i*pageSize:][:pageSize]; !bytes.Equal(page, before[i*pageSize:][:pageSize]) {
						copy(torn[i*pageSize:], page[:n])
					}
				}
				check("half of the meta page", torn, have, next)
			}
			check("all of it", after, next)
		}
		have = next
	}
	require.Greater(t, appends, 30)
	require.Greater(t, transactions, 15)
}

// A flipped bit in the newer meta page has bbolt take the older one. Where anything was logged since, that is ErrCorrupt, and can be
// salvaged; where nothing was, the file is as it was one transaction before, and what was logged by then is there.
func TestLogTellsOfADamagedMetaPage(t *testing.T) {
	s := openStore(t, storePath(t))
	rnd := rand.New(rand.NewPCG(7, 1))
	var have, before map[Key]int64 // before the last transaction
	logged, other := 0, 0
	for step := range 60 {
		made := commits(t, s.path)
		last := allOf(t, s)
		c := Change{Key{1, fmt.Sprint(strings.Repeat("long", rnd.IntN(120)), rnd.IntN(10))}, 1<<60 + int64(step)}
		switch rnd.IntN(6) {
		case 0:
			require.NoError(t, s.checkpoint())
		case 1:
			s.alone()
			require.NoError(t, s.Save([]Change{c}))
		case 2:
			_, err := s.Number(fmt.Sprint("label ", step))
			require.NoError(t, err)
		case 3: // another process goes on
			require.NoError(t, s.Close())
			s = openStore(t, s.path)
		default:
			require.NoError(t, s.append([]Change{c}))
		}
		have = allOf(t, s)
		if commits(t, s.path) > made+1 || before == nil {
			before = have // not known, if there were several
			continue
		}
		image := copied(t, s)
		image[pagesOf(image).meta()+16+rnd.Int64N(metaBytes-16)] ^= 1 << rnd.IntN(8)
		path := writeFile(t, image)
		got, err := found2(t, path)
		if s.file.log.at > 0 {
			logged++
			require.ErrorIs(t, err, ErrCorrupt, "step %d", step)
			to := filepath.Join(t.TempDir(), "salvaged.db")
			salvaged, err := Salvage(path, to, nil, nil)
			require.NoError(t, err)
			require.ErrorIs(t, salvaged.Lost[0], errOldMeta)
			got, err = found(t, to)
			require.NoError(t, err)
			require.Equal(t, have[c.Key], got[c.Key], "what was logged last")
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

// So it is behind a commit that failed, and is in force: the next transaction begins a round that this one has not.
func TestLogTellsOfADamagedMetaPageBehindAFailedCommit(t *testing.T) {
	s := openLogged(t)
	require.NoError(t, s.append([]Change{{Key{1, "a"}, 1 << 60}}))
	restore := commitFails(s.file, s.file.unsynced)
	require.ErrorIs(t, s.emptyLog(), errFault)
	restore()
	require.NoError(t, s.append([]Change{{Key{1, "b"}, 1 << 60}}))
	require.Zero(t, s.file.log.at, "a transaction")
	require.NoError(t, s.append([]Change{{Key{1, "c"}, 1 << 60}}))
	image := copied(t, s)
	image[pagesOf(image).meta()+30] ^= 1
	_, err := found2(t, writeFile(t, image))
	require.ErrorIs(t, err, ErrCorrupt)
}

// The round behind one is found where the log begins, and nowhere else.
func TestNextRound(t *testing.T) {
	for _, round := range []uint64{0, 1, 1<<32 - 1, 1 << 32, 1<<64 - 1, rand.Uint64()} {
		var l boltLog
		frames := make([][]byte, 4) // of this round and the next three
		for i := range frames {
			frames[i] = make([]byte, logSize)
			l.round = round
			for range i {
				l.round = nextRound(l.round)
			}
			frame, _ := l.frame(5, []Change{{Key{1, "a"}, 1}})
			copy(frames[i], frame)
			records := readNextRound(frames[i], round)
			require.Equal(t, i == 1, len(records) == 1, "%d: %d rounds on", round, i)
			require.Empty(t, readNextRound(frames[i], l.round))
		}
		require.Empty(t, readNextRound(append(make([]byte, logBlock), frames[1]...), round))
		frames[1][30] ^= 1
		require.Empty(t, readNextRound(frames[1], round))
		require.Empty(t, readNextRound(make([]byte, logSize), round))
	}
}

// found2 is found without Verify: a torn meta page is one that it tells of.
func found2(t testing.TB, path string) (map[Key]int64, error) {
	s, err := OpenBolt(path, nil, &BoltOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return allOf(t, s), nil
}

type writerAtOf func(b []byte, at int64) (int, error)

func (w writerAtOf) WriteAt(b []byte, at int64) (int, error) { return w(b, at) }

// A save whose write or sync fails is not acknowledged, nor is any that comes behind it before a transaction of bbolt's has succeeded.
func TestLogFails(t *testing.T) {
	for _, what := range []string{"nothing is written", "half is written", "all is written", "the sync fails"} {
		t.Run(what, func(t *testing.T) {
			s := openLogged(t)
			require.NoError(t, s.append([]Change{{Key{1, "before"}, 1 << 60}}))
			have := allOf(t, s)
			l := &s.file.log
			out, synced := l.out, l.sync
			l.out = writerAtOf(func(b []byte, at int64) (int, error) {
				switch what {
				case "nothing is written":
					return 0, errFault
				case "half is written":
					_, err := out.WriteAt(b[:len(b)/2], at)
					return len(b) / 2, errors.Join(errFault, err)
				case "all is written":
					_, err := out.WriteAt(b, at)
					return len(b), errors.Join(errFault, err)
				}
				return out.WriteAt(b, at)
			})
			l.sync = func() error { return errFault }
			lost := Change{Key{1, strings.Repeat("lost", 128)}, 1 << 60}
			seq := s.seq
			require.ErrorIs(t, s.append([]Change{lost, {Key{1, "lost, too"}, 1 << 60}}), errFault)
			require.Equal(t, have, allOf(t, s))
			require.Equal(t, seq+1, s.seq, "the number is not given to another")
			got, err := found2(t, crash(t, s))
			require.NoError(t, err, "the file is as a crash may leave it")
			if len(got) != len(have) {
				require.Equal(t, apply(have, lost, Change{Key{1, "lost, too"}, 1 << 60}), got, "all, or nothing")
			}

			s.file.db.MaxSize = 1 // nor can bbolt write
			var many []Change
			for i := range 2000 {
				many = append(many, Change{Key{1, fmt.Sprint(strings.Repeat("many", 100), i)}, 1})
			}
			require.Error(t, s.append(many))
			s.file.db.MaxSize = 0

			made := commits(t, s.path)
			s.alone()
			require.NoError(t, s.Save([]Change{{Key{1, "next"}, 1 << 60}}))
			require.Equal(t, made+1, commits(t, s.path), "a transaction, though the log would do")
			have = apply(have, Change{Key{1, "next"}, 1 << 60})
			require.Equal(t, have, allOf(t, s))
			got, err = found(t, crash(t, s))
			require.NoError(t, err)
			require.Equal(t, have, got)

			l.out, l.sync = out, synced
			require.NoError(t, s.append([]Change{{Key{1, "last"}, 1 << 60}}))
			require.Equal(t, made+1, commits(t, s.path), "the log again")
			got, err = found(t, crash(t, s))
			require.NoError(t, err)
			require.Equal(t, apply(have, Change{Key{1, "last"}, 1 << 60}), got)
		})
	}
}

// A transaction that failed may be in the file all the same: what is acknowledged next is not in a round that it has ended.
func TestLogBehindATransactionThatFailed(t *testing.T) {
	s := openLogged(t)
	require.NoError(t, s.append([]Change{{Key{1, "logged"}, 1 << 60}}))
	s.file.db.MaxSize = 1
	var many []Change
	for i := range 40_000 {
		many = append(many, Change{Key{1, fmt.Sprintf("%024d", i)}, 1})
	}
	require.Error(t, s.append(many))
	s.file.db.MaxSize = 0
	made := commits(t, s.path)
	require.NoError(t, s.append([]Change{{Key{1, "next"}, 1 << 60}}))
	require.Equal(t, made+1, commits(t, s.path))
	require.EqualValues(t, int64(1<<60), load(t, s, Key{1, "logged"}))
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, allOf(t, s), got)
}

// What a transaction that failed has brought to the journal all the same is not brought there twice.
func TestLogIsTakenOverOnce(t *testing.T) {
	s := openLogged(t)
	require.NoError(t, s.append([]Change{{Key{1, "logged"}, 1 << 60}}))
	l := &s.file.log
	pending := slices.Clone(l.pending)
	require.NoError(t, s.emptyLog())
	l.pending, l.failed = pending, true // as if that commit had told of a failure
	require.NoError(t, s.append([]Change{{Key{1, "next"}, 1 << 60}}))
	have := allOf(t, s)
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, have, got)
}

// A commit whose meta page could not be synced is in force, and perhaps not on the disk: what is on the disk stays as it is until that
// page is there.
func TestCommitThatFailed(t *testing.T) {
	s := openLogged(t)
	const n = 5_000
	fill(t, s, n)
	have := allOf(t, s)
	homeAgain := func(tat int64) error {
		return s.update(func(tx *bolt.Tx) error {
			return s.putHome(tx, func(yield func(Change) bool) {
				for i := range n {
					if !yield(Change{Key{1, fmt.Sprintf("id-%07d", i)}, tat}) {
						return
					}
				}
			})
		})
	}
	disk := copied(t, s)[:2*pageSize] // the meta pages
	restore := commitFails(s.file, s.file.unsynced)
	require.ErrorIs(t, homeAgain(1<<60), errFault)
	restore()

	l := &s.file.log
	out, synced, fails := l.out, l.sync, true
	var written []byte
	at := int64(0)
	l.out = writerAtOf(func(b []byte, where int64) (int, error) {
		written, at = bytes.Clone(b), where
		return out.WriteAt(b, where)
	})
	l.sync = func() error {
		if fails {
			return errFault
		}
		copy(disk[at:], written)
		return synced()
	}
	var cuts [][]byte
	cut := func(meta []byte, at int64) (int, error) { // the pages of the next commit are synced, and its meta page is not
		image, err := os.ReadFile(s.path)
		copy(image, disk)
		cuts = append(cuts, image)
		n, writeErr := s.file.file.WriteAt(meta, at)
		return n, errors.Join(err, writeErr)
	}
	restore = commitFails(s.file, cut)
	var early []error
	for range 2 {
		early = append(early, homeAgain(1<<61))
	}
	fails = false
	require.NoError(t, homeAgain(1<<61))
	written = nil
	require.NoError(t, homeAgain(1<<61+1))
	require.Nil(t, written, "it is written once")
	restore()
	require.EqualValues(t, int64(1<<61+1), load(t, s, Key{1, "id-0000000"}))
	require.NotEmpty(t, cuts)
	got, err := found2(t, writeFile(t, cuts[0]))
	require.NoError(t, err)
	require.Len(t, got, len(have))
	for key, tat := range got {
		if tat != have[key] {
			require.EqualValues(t, int64(1<<60), tat)
		}
	}
	for _, err := range early {
		require.ErrorIs(t, err, errFault, "nothing is written before that page is on the disk")
	}
}

// A save is acknowledged once it is written, and synced after that.
func TestLogSyncsBeforeItAcknowledges(t *testing.T) {
	s := openLogged(t)
	l := &s.file.log
	var saved atomic.Bool
	at, syncing, goOn := l.begin+l.at, make(chan struct{}), make(chan struct{})
	synced := l.sync
	l.sync = func() error {
		close(syncing)
		<-goOn
		return synced()
	}
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	done := make(chan error)
	go func() {
		err := s.append([]Change{{Key{1, "a"}, 1 << 60}})
		saved.Store(true)
		done <- err
	}()
	select {
	case <-syncing:
	case <-done:
		t.Fatal("it was acknowledged, and not synced")
	}
	require.False(t, saved.Load())
	require.Equal(t, l.round, binary.BigEndian.Uint64(copied(t, s)[at:]), "what is synced was written")
	release()
	require.NoError(t, <-done)
	l.sync = synced
}

// Whoever reads the file, or a copy of it, finds what is in the log.
func TestLogIsSeenByAll(t *testing.T) {
	s := openLogged(t)
	require.NoError(t, s.append([]Change{{Key{1, "a"}, 1 << 60}, {Key{1, "the log is made"}, 0}, {Key{Unknown, "1:a"}, 1 << 60}}))
	require.NoError(t, s.append([]Change{{Key{2, "b"}, 1 << 60}}))
	have := map[Key]int64{{1, "a"}: 1 << 60, {Unknown, "1:a"}: 1 << 60, {2, "b"}: 1 << 60}
	require.Equal(t, have, allOf(t, s))
	require.EqualValues(t, 4, s.Stats().Journaled)
	require.Positive(t, s.Stats().Journal)
	v, err := s.Verify(nil)
	require.NoError(t, err)
	require.Equal(t, Verified{Buckets: 1, Journaled: 4}, v)

	left := crash(t, s)
	content, err := os.ReadFile(left)
	require.NoError(t, err)
	got, err := found(t, left)
	require.NoError(t, err)
	require.Equal(t, have, got)
	to := filepath.Join(t.TempDir(), "salvaged.db")
	salvaged, err := Salvage(left, to, nil, nil)
	require.NoError(t, err)
	require.Equal(t, Salvaged{Buckets: 3}, salvaged)
	got, err = found(t, to)
	require.NoError(t, err)
	require.Equal(t, have, got)
	r, err := OpenBolt(left, nil, &BoltOptions{ReadOnly: true})
	require.NoError(t, err)
	var b bytes.Buffer
	_, err = r.Snapshot(&b)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	got, err = found(t, writeFile(t, b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, have, got)
	now, err := os.ReadFile(left)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, now), "who only reads leaves the file as it is")

	b.Reset()
	_, err = s.Snapshot(&b)
	require.NoError(t, err)
	image := writeFile(t, b.Bytes())
	got, err = found(t, image)
	require.NoError(t, err)
	require.Equal(t, have, got)
	region := b.Bytes()[s.file.log.begin:][:logSize]
	require.True(t, bytes.Equal(make([]byte, logSize), region), "what comes meanwhile is not in the copy")
	c := openStore(t, image)
	require.NoError(t, c.append([]Change{{Key{1, "more"}, 1}})) // begins a round
	require.NoError(t, c.append([]Change{{Key{1, "more"}, 1}}))
	require.Positive(t, c.file.log.at)
	require.NoError(t, c.Close())

	require.NoError(t, s.append([]Change{{Key{2, "c"}, 1 << 60}}))
	have[Key{2, "c"}] = 1 << 60
	require.NoError(t, s.Compact())
	require.Equal(t, have, allOf(t, s))
	got, err = found(t, crash(t, s))
	require.NoError(t, err)
	require.Equal(t, have, got)
	require.NoError(t, s.append([]Change{{Key{2, "d"}, 1 << 60}}))
	have[Key{2, "d"}] = 1 << 60
	path := crash(t, s)
	_, err = SetNames(path, map[Name]string{1: "uno"}, nil, nil)
	require.NoError(t, err)
	got, err = found(t, path)
	require.NoError(t, err)
	require.Equal(t, have, got)
}

// A store that is closed leaves nothing in the log, even where it leaves a long journal.
func TestLogIsEmptyWhenClosed(t *testing.T) {
	s := openLogged(t)
	for i := range checkpointStep + 1 {
		s.fresh.put(Change{Key{1, fmt.Sprint(i)}, 1 << 60}) // as if it were long
	}
	require.NoError(t, s.append([]Change{{Key{1, "a"}, 1 << 60}}))
	require.NoError(t, s.Close())
	r, err := OpenBolt(s.path, nil, &BoltOptions{ReadOnly: true})
	require.NoError(t, err)
	defer r.Close()
	require.Empty(t, r.file.log.pending)
	require.EqualValues(t, 1, r.Stats().Journaled)
}

// A file that has no room for a log does without.
func TestLogHasNoRoom(t *testing.T) {
	s, err := OpenBolt(storePath(t), storeNames, &BoltOptions{maxSize: 256 << 10})
	require.NoError(t, err)
	defer s.Close()
	for i := range 20 {
		require.NoError(t, s.append([]Change{{Key{1, fmt.Sprint(i)}, 1 << 60}}))
	}
	require.True(t, s.file.log.refused)
	got, err := found(t, crash(t, s))
	require.NoError(t, err)
	require.Len(t, got, 20)
}

// Whoever was killed after a sync that failed left what only looks written: the next process does not build upon it.
func TestLogOfFailedSyncIsNotBuiltUpon(t *testing.T) {
	s := openLogged(t)
	require.NoError(t, s.append([]Change{{Key{1, "a"}, 1 << 60}}))
	disk := copied(t, s)
	s.file.log.sync = func() error { return errFault }
	require.ErrorIs(t, s.append([]Change{{Key{1, "b"}, 1 << 60}}), errFault)
	next, err := OpenBolt(writeFile(t, copied(t, s)), nil, nil)
	require.NoError(t, err)
	defer next.Close()
	out := next.file.log.out
	next.file.log.out = writerAtOf(func(p []byte, at int64) (int, error) {
		copy(disk[at:], p)
		return out.WriteAt(p, at)
	})
	require.NoError(t, next.append([]Change{{Key{1, "c"}, 1 << 60}}))
	_, err = found(t, writeFile(t, disk))
	require.NoError(t, err, "a power cut leaves no gap")
}

// The same of the meta page: the system takes it for written, so it is written again before anything is built upon it.
func TestMetaPageIsWrittenAgain(t *testing.T) {
	s := openLogged(t)
	want, err := readMeta(s.file.file)
	require.NoError(t, err)
	var done []string
	s.file.log.out = writerAtOf(func(p []byte, at int64) (int, error) {
		require.True(t, isMeta(p))
		require.Equal(t, want.tx, binary.NativeEndian.Uint64(p[64:]))
		require.EqualValues(t, want.tx%2*pageSize, at)
		done = append(done, "written")
		return len(p), nil
	})
	s.file.log.sync = func() error { done = append(done, "synced"); return nil }
	require.NoError(t, s.file.buildUpon())
	require.Equal(t, []string{"written", "synced"}, done)
	s.file.log.out, s.file.log.sync = s.file.file, func() error { return syncFile(s.file.file) }
}

// Whoever reads when a commit has failed is waited for before the pages that it freed are used.
func TestReadersOverAFailedCommit(t *testing.T) {
	s := openLogged(t)
	var settled, tooSoon atomic.Bool
	done := make(chan struct{})
	require.NoError(t, s.file.view(func(*bolt.Tx) error {
		m, err := readMeta(s.file.file)
		require.NoError(t, err)
		s.file.unsure, err = s.file.metaOf(m.tx)
		require.NoError(t, err)
		synced := make(chan struct{})
		sync := s.file.log.sync
		s.file.log.sync = func() error { defer close(synced); return sync() }
		go func() {
			defer close(done)
			require.NoError(t, s.file.settle())
			settled.Store(true)
		}()
		<-synced
		for range 10_000 {
			runtime.Gosched()
		}
		tooSoon.Store(settled.Load())
		s.file.log.sync = sync
		return nil
	}))
	<-done
	require.False(t, tooSoon.Load())
}

// What fails to be saved does not make the journal longer: nothing would ever make it shorter.
func TestFailedSavesAreNotJournaled(t *testing.T) {
	s := openLogged(t)
	require.NoError(t, s.Compact())
	restore := commitFails(s.file, func([]byte, int64) (int, error) { return 0, errFault })
	for range 3 {
		require.Error(t, s.append(make([]Change, 10_000)))
	}
	restore()
	require.LessOrEqual(t, s.Stats().Journal, int64(1))
	require.NoError(t, s.append([]Change{{Key{1, "next"}, 1}}))
}

// Who is killed right behind the making of the log leaves it to the next process that both meta pages know of it.
func TestKilledBehindMakeLog(t *testing.T) {
	s := openStore(t, storePath(t))
	s.alone()
	require.NoError(t, s.Save([]Change{{Key{1, "old"}, 1 << 60}}))
	s.file.makeLog()
	s = openStore(t, crash(t, s))
	for _, id := range []string{"a", "b"} {
		require.NoError(t, s.append([]Change{{Key{1, id}, 1 << 60}}))
	}
	require.Positive(t, s.file.log.at)
	image, err := os.ReadFile(crash(t, s))
	require.NoError(t, err)
	image[pagesOf(image).meta()+30] ^= 1
	_, err = found(t, writeFile(t, image))
	require.ErrorIs(t, err, ErrCorrupt)
}

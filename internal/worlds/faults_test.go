package worlds

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/testlength"
)

// faultRows run the rows of the table in docs/faults.md.
var faultRows = map[string]func(t *testing.T){
	"The disk is full, or a write or a sync fails": testDiskFails,
	"The disk hangs":          testDiskHangs,
	"A bucket cannot be read": testReadFails,
	"The file is removed or renamed while it is in use":          testFileRemoved,
	"Another file takes the name of the file while it is in use": testFileReplaced,
	"The file is truncated while it is in use":                   testFileTruncated,
	"The file is damaged, truncated or empty when it is opened":  testRecover,
	"Another process has the file":                               testErrLocked,
	"The process is killed, or the power fails":                  testKilled,
	"A call that returned an error is tried again":               testTriedAgain,
	"Memory holds `MaxResident` buckets, and none can be saved":  inRoot("TestNoSpace"),
	"The wall clock is wrong when the file is opened":            inRoot("TestWrongClock"),
	"The wall clock is set, or the machine slept":                inRoot("TestClockSteps"),
}

// inRoot stands for a test of package stint, which knows more than a program.
func inRoot(test string) func(t *testing.T) {
	return func(t *testing.T) {
		files, err := filepath.Glob("../../*_test.go")
		require.NoError(t, err)
		for _, name := range files {
			if strings.Contains(string(filecopy.Read(t, name)), "\nfunc "+test+"(") {
				return
			}
		}
		t.Fatal("package stint has no ", test)
	}
}

// TestFaultTable checks what docs/faults.md says of each fault.
func TestFaultTable(t *testing.T) {
	t.Parallel()
	var rows []string
	for line := range strings.Lines(string(filecopy.Read(t, "../../docs/faults.md"))) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && !strings.HasPrefix(cells[1], "-") {
			rows = append(rows, strings.TrimSpace(cells[1]))
		}
	}
	require.Equal(t, "Fault", rows[0])
	for _, row := range rows[1:] {
		run := faultRows[row]
		require.NotNil(t, run, "no test runs the row %q", row)
		t.Run(row, run)
	}
	require.Len(t, rows[1:], len(faultRows))
	for kind := stint.FlushFailed; kind <= stint.ClockWrong; kind++ {
		require.NotContains(t, kind.String(), "EventKind")
	}
}

// faultLife is a Limiter that has spent 3 tokens of 10, and saved that.
type faultLife struct {
	*stint.Limiter
	disk   *faultDisk
	key    stint.Key
	mu     sync.Mutex
	events []stint.EventKind
}

func (f *faultLife) told() []stint.EventKind {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// spendUnsaved spends 4 tokens more, which the store does not take. At the
// levels that wait for the store, the error wraps ErrNotDurable, and want
// unless it is nil.
func (f *faultLife) spendUnsaved(t *testing.T, want error) {
	t.Helper()
	_, err := f.Spend(f.key, 4)
	if f.key.Name < stint.Name(stint.Leased) {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, stint.ErrNotDurable)
	if want != nil {
		require.ErrorIs(t, err, want)
	}
}

// eachFaultLife runs a test at each level from the least on, on each kind of store.
func eachFaultLife(t *testing.T, least stint.Durability, test func(t *testing.T, f *faultLife)) {
	eachFaultDisk(t, least, func(t *testing.T, kind string, level stint.Durability) {
		test(t, newFaultLife(t, newFaultDisk(t, kind), level, stint.Options{}))
	})
}

// eachFaultDisk is eachFaultLife before there is a Limiter. Without the tag long,
// writes of a file fail at two of the levels, and syncs at the other two.
func eachFaultDisk(t *testing.T, least stint.Durability, test func(t *testing.T, kind string, level stint.Durability)) {
	for i, kind := range faultKinds {
		for level := least; level <= stint.Synced; level++ {
			if !testlength.Long && kind != "mem" && int(level)%2 != i-1 {
				continue
			}
			t.Run(kind+"/"+level.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, kind, level) })
			})
		}
	}
}

func newFaultLife(t *testing.T, d *faultDisk, level stint.Durability, o stint.Options) *faultLife {
	f := &faultLife{disk: d, key: stint.Name(level).Key("a")}
	o.OnEvent = func(e stint.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, e.Kind)
	}
	if o.FlushInterval == 0 { // the test says when to flush
		o.FlushInterval, o.Now = 1e4*time.Hour, time.Now
	}
	o.MaxResident = fewResident
	var err error
	f.Limiter, err = stint.New(d, tenADay(t), &o)
	require.NoError(t, err)
	t.Cleanup(func() {
		d.met, d.failed = nil, false
		f.Close()
	})
	_, err = f.Spend(f.key, 3)
	require.NoError(t, err)
	require.NoError(t, f.Flush())
	require.NoError(t, f.Health())
	return f
}

func testDiskFails(t *testing.T) {
	eachFaultLife(t, stint.Memory, func(t *testing.T, f *faultLife) {
		f.disk.met = func() error { return errDisk }
		f.spendUnsaved(t, errDisk)
		f.Spend(f.key, 1)
		require.ErrorIs(t, f.Flush(), errDisk)
		require.ErrorIs(t, f.Health(), errDisk)
		require.ErrorIs(t, f.Flush(), errDisk)
		synctest.Wait()
		require.Equal(t, []stint.EventKind{stint.FlushFailed}, f.told())
		require.LessOrEqual(t, f.disk.afterCrash(t, f.key), int64(7))

		f.disk.met, f.disk.failed = nil, false
		require.NoError(t, f.Flush())
		require.NoError(t, f.Health())
		require.Equal(t, remainingOf(t, f.Limiter, f.key), f.disk.afterCrash(t, f.key))
		f.disk.met, f.disk.failed = func() error { return errDisk }, true
		f.Spend(f.key, 1)
		require.ErrorIs(t, f.Close(), errDisk)
		require.Equal(t, []stint.EventKind{stint.FlushFailed, stint.FlushRecovered, stint.FlushFailed}, f.told())
		f.disk.met = nil
	})
}

func testDiskHangs(t *testing.T) {
	eachFaultDisk(t, stint.Memory, func(t *testing.T, kind string, level stint.Durability) {
		o := stint.Options{CommitTimeout: 3 * time.Second}
		if level == stint.Flushed { // the ticker is what hangs
			o.FlushInterval = time.Second
		}
		f := newFaultLife(t, newFaultDisk(t, kind), level, o)
		release := make(chan struct{})
		f.disk.met = func() error { <-release; return nil }
		f.spendUnsaved(t, nil)
		if level == stint.Memory {
			go f.Flush()
		}
		pass(4 * time.Second)
		for range 2 {
			require.Regexp(t, `^stint: a save under way since \d.*Z: no answer from the store for 3s$`, f.Health().Error())
			require.Equal(t, []stint.EventKind{stint.SaveOverdue}, f.told())
			pass(time.Minute)
		}
		f.disk.met = nil
		require.LessOrEqual(t, f.disk.afterCrash(t, f.key), int64(7))
		close(release)
		pass(time.Second)
		require.Equal(t, []stint.EventKind{stint.SaveOverdue, stint.SaveEnded}, f.told())
		require.NoError(t, f.Health())
		require.NoError(t, f.Close())
	})
	t.Run("upkeep", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := &hangingUpkeep{stint.NewMemStore(), make(chan struct{})}
			var events []stint.Event
			l, err := stint.New(store, tenADay(t), &stint.Options{OnEvent: func(e stint.Event) { events = append(events, e) }})
			require.NoError(t, err)
			pass(7 * time.Second)
			require.ErrorContains(t, l.Health(), "the upkeep of the store under way since")
			require.Len(t, events, 1)
			require.Equal(t, stint.SaveOverdue, events[0].Kind)
			require.EqualError(t, l.Health(), events[0].Err.Error())
			close(store.release)
			pass(time.Second)
			require.NoError(t, l.Health())
			require.NoError(t, l.Close())
		})
	})
}

// hangingUpkeep is a Store whose upkeep ends when it is released.
type hangingUpkeep struct {
	stint.Store
	release chan struct{}
}

func (s *hangingUpkeep) Maintain(time.Time) error { <-s.release; return nil }

func testReadFails(t *testing.T) {
	for _, kind := range faultKinds {
		t.Run(kind, func(t *testing.T) {
			d := newFaultDisk(t, kind)
			var fails atomic.Bool
			store := &faultyStore{Store: d.Store, inject: func(op string, done bool) error {
				if op == "load" && !done && fails.Load() {
					return errDisk
				}
				return nil
			}}
			l, err := stint.New(store, tenADay(t), nil)
			require.NoError(t, err)
			defer l.Close()
			fails.Store(true)
			key := stint.Name(2).Key("a")
			_, err = l.Spend(key, 1)
			require.ErrorIs(t, err, errDisk)
			require.False(t, l.Allow(key))
			require.ErrorIs(t, l.Health(), errDisk)
			require.EqualValues(t, 2, l.Stats().Limits[2].Errors)
			fails.Store(false)
			require.True(t, l.Allow(key))
			require.NoError(t, l.Health())
		})
	}
}

func testFileRemoved(t *testing.T) {
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			f := newFaultLife(t, newFaultDisk(t, "file, sync"), level, stint.Options{})
			require.NoError(t, os.Remove(f.disk.path))
			f.spendUnsaved(t, stint.ErrGone)
			for f.Flush() != nil { // the new file is made in the background
			}
			require.NoError(t, f.Health())
			require.Equal(t, remainingOf(t, f.Limiter, f.key), f.disk.afterCrash(t, f.key))
			_, err := f.Spend(f.key, 2)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.Subset(t, f.told(), []stint.EventKind{stint.FileGone, stint.FileBack})
			require.Len(t, slices.DeleteFunc(f.told(), func(k stint.EventKind) bool { return k != stint.FileGone }), 1)
			require.LessOrEqual(t, f.disk.afterCrash(t, f.key), int64(5))
		})
	}
	for name, call := range map[string]func(f *faultLife) error{
		"Flush with nothing to save": func(f *faultLife) error { return f.Flush() },
		"Flush soon after a look": func(f *faultLife) error {
			f.disk.files.LookEvery = time.Hour
			f.Spend(f.key, 1)
			return f.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaultLife(t, newFaultDisk(t, "file, sync"), stint.Flushed, stint.Options{})
			require.NoError(t, os.Rename(f.disk.path, f.disk.path+".moved"))
			err := call(f)
			require.ErrorIs(t, err, stint.ErrGone)
			require.ErrorIs(t, err, fs.ErrNotExist)
			f.Close()
		})
	}
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run("Close/"+level.String(), func(t *testing.T) {
			f := newFaultLife(t, newFaultDisk(t, "file, sync"), level, stint.Options{})
			_, err := f.Spend(f.key, 2)
			require.NoError(t, err)
			left := remainingOf(t, f.Limiter, f.key)
			require.NoError(t, os.Rename(f.disk.path, f.disk.path+".moved"))
			require.NoError(t, f.Close())
			require.Equal(t, left, f.disk.afterCrash(t, f.key))
		})
	}
	t.Run("a Store of another kind", func(t *testing.T) {
		for level := stint.Memory; level <= stint.Synced; level++ {
			t.Run(level.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFaultLife(t, newFaultDisk(t, "mem"), level, stint.Options{})
					f.disk.met = func() error { return stint.ErrGone }
					f.spendUnsaved(t, stint.ErrGone)
					require.ErrorIs(t, f.Flush(), stint.ErrGone)
					require.ErrorIs(t, f.Health(), stint.ErrGone)
					require.ErrorIs(t, f.Close(), stint.ErrGone)
					require.Equal(t, []stint.EventKind{stint.FileGone, stint.FlushFailed}, f.told())
				})
			})
		}
	})
}

func testFileReplaced(t *testing.T) {
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			f := newFaultLife(t, newFaultDisk(t, "file, sync"), level, stint.Options{})
			foreign := []byte("somebody else's")
			require.NoError(t, os.WriteFile(f.disk.path+".other", foreign, 0o600))
			require.NoError(t, os.Rename(f.disk.path+".other", f.disk.path))
			for range 2 {
				f.spendUnsaved(t, stint.ErrGone)
				f.Refund(f.key.Cost(4).SpentAt(inFuture))
				require.ErrorIs(t, f.Flush(), stint.ErrGone)
				require.ErrorIs(t, f.Health(), stint.ErrGone)
			}
			var copied bytes.Buffer
			_, err := f.Snapshot(&copied)
			require.NoError(t, err)
			left := remainingOf(t, f.Limiter, f.key)
			require.ErrorIs(t, f.Close(), stint.ErrGone)
			require.Equal(t, []stint.EventKind{stint.FileGone, stint.FlushFailed}, f.told())
			require.Equal(t, foreign, filecopy.Read(t, f.disk.path))
			require.NoError(t, os.WriteFile(f.disk.path, copied.Bytes(), 0o600))
			require.Equal(t, left, f.disk.afterCrash(t, f.key))
		})
	}
}

func testFileTruncated(t *testing.T) {
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			f := newFaultLife(t, newFaultDisk(t, "file, sync"), level, stint.Options{})
			const short = "the file is shorter than it says: "
			require.NoError(t, os.Truncate(f.disk.path, 2*pageSize))
			f.spendUnsaved(t, stint.ErrCorrupt)
			err := f.Flush()
			require.ErrorIs(t, err, stint.ErrCorrupt)
			require.ErrorContains(t, err, short)
			require.ErrorIs(t, f.Health(), stint.ErrCorrupt)
			require.ErrorIs(t, f.Close(), stint.ErrCorrupt)
			require.Contains(t, f.told(), stint.FlushFailed)
			_, err = stint.Open(f.disk.path, tenADay(t), nil)
			require.ErrorIs(t, err, stint.ErrCorrupt)
			require.ErrorContains(t, err, short)
			require.ErrorContains(t, err, "restore it from a backup")
		})
	}
}

func testKilled(t *testing.T) {
	eachFaultLife(t, stint.Memory, func(t *testing.T, f *faultLife) {
		_, err := f.Spend(f.key, 4)
		require.NoError(t, err)
		least := map[stint.Durability]int64{stint.Memory: 7, stint.Flushed: 7, stint.Leased: 1, stint.Synced: 3} // a lease withholds up to an eighth
		left := f.disk.afterCrash(t, f.key)
		require.GreaterOrEqual(t, left, least[stint.Durability(f.key.Name)])
		if f.key.Name >= stint.Name(stint.Leased) {
			require.LessOrEqual(t, left, int64(3))
		}
		require.NoError(t, f.Flush())
		require.EqualValues(t, 3, f.disk.afterCrash(t, f.key))
		require.NoError(t, f.Close())
	})
}

func testTriedAgain(t *testing.T) {
	eachFaultLife(t, stint.Leased, func(t *testing.T, f *faultLife) { // below, no call waits for the store
		fails := func(call func() error) {
			f.disk.met = func() error { return errDisk }
			require.ErrorIs(t, call(), stint.ErrNotDurable)
			f.disk.met, f.disk.failed = nil, false
			require.NoError(t, call())
		}
		for _, call := range []func() error{
			func() error { return f.Reset(f.key) },
			func() error { _, err := f.Refund(f.key.Cost(3).SpentAt(inFuture)); return err },
		} {
			_, err := f.Spend(f.key, remainingOf(t, f.Limiter, f.key)-7) // 3 are missing
			require.NoError(t, err)
			fails(call)
			require.EqualValues(t, 10, f.disk.afterCrash(t, f.key))
		}
		require.NoError(t, errorOf(f.Hold(f.key, f.Now().AddDate(1, 0, 0))))
		require.Zero(t, f.disk.afterCrash(t, f.key))
		fails(func() error { return f.SetHold(f.key, time.Time{}) })
		require.EqualValues(t, 10, f.disk.afterCrash(t, f.key))
		require.NoError(t, f.Close())
	})
}

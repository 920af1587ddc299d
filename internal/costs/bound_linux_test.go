package costs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/worlds"
)

func init() {
	children["limited"] = limitedChild
	children["bound"] = boundChild
}

// limitedChild becomes boundChild, with an address space of 512 MiB.
func limitedChild([]string) {
	limit := syscall.Rlimit{Cur: 512 << 20, Max: 512 << 20}
	err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit)
	if err == nil {
		subprocess.Become("bound")
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	panic(err)
}

// largestMapping returns the largest power of two that can be mapped in one
// piece.
func largestMapping() (size int) {
	for size = 1 << 30; ; size /= 2 {
		b, err := syscall.Mmap(-1, 0, size, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err == nil {
			syscall.Munmap(b)
			return size
		}
	}
}

// boundChild fills a file until a flush fails, and decides after that. Its
// second argument is the bound of the file, or 0 for the usual one.
func boundChild(args []string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	subprocess.Say("%d", largestMapping())
	files := worlds.Unsynced()
	bound, err := strconv.Atoi(args[1])
	must(err)
	if bound > 0 {
		files.MaxSize = bound
	}
	names := stint.Names{flushed: {Label: "flushed", Limit: stint.PerHour(3)}}
	limits, err := stint.NewLimits(names)
	must(err)
	const resident = 10_000
	store, err := boltstore.Open(args[0], map[uint16]string{uint16(flushed): "flushed"}, boltstore.Options{MaxResident: resident, FS: files})
	must(err)
	l, err := stint.New(worlds.File{Store: store}, limits, &stint.Options{MaxResident: resident, CommitTimeout: time.Minute})
	must(err)
	long := strings.Repeat("x", 200)
	for n := 1; err == nil; n++ {
		if _, err = l.Spend(flushed.Key(fmt.Sprint(n, long)), 1); err == nil && n%(resident/2) == 0 {
			err = l.Flush()
		}
	}
	subprocess.Say("%q", l.Health().Error())
	subprocess.Say("%d", l.Stats().File.Bytes)
	for _, id := range []string{"1" + long, "new", "new", "new", "new"} {
		d, err := l.Spend(flushed.Key(id), 1)
		subprocess.Say("%v %v", d.Allowed, err)
	}
	l.Close()
}

// TestBoundOn512MB: a file of 32 bits that cannot grow any more is an error of
// Health, and decisions go on. With twice the bound, bbolt unmaps the file and
// cannot map twice as much. Then no bucket can be read any more.
func TestBoundOn512MB(t *testing.T) {
	switch {
	case subprocess.Emulated():
		t.Skip("the address space is that of the emulator")
	case strconv.IntSize == 64:
		t.Skip("the bound is that of 32 bits: GOARCH=386 go test -run TestBoundOn512MB -v ./internal/costs")
	}
	for name, c := range map[string]struct {
		bound         int
		failure, load string // load: of a bucket that is not in memory
	}{
		"128 MiB": {0, "database reached maximum size", "true <nil>"},
		"256 MiB": {256 << 20, "mmap allocate error|isn't correctly mapped", "isn't correctly mapped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := subprocess.Start(t, "limited", worlds.Path(t), fmt.Sprint(c.bound))
			require.Equal(t, fmt.Sprint(128<<20), child.ReadLine(t), "what can be mapped in one piece")
			health := child.ReadLine(t)
			require.Regexp(t, c.failure, health)
			size, err := strconv.Atoi(child.ReadLine(t))
			require.NoError(t, err)
			require.InDelta(t, 128<<20, size, 2<<20)
			require.Contains(t, child.ReadLine(t), c.load)
			for i := range 4 {
				allowed := child.ReadLine(t)
				require.True(t, c.bound > 0 || allowed == fmt.Sprint(i < 3, " <nil>"), allowed)
			}
			child.Finish(t)
			t.Logf("at %d bytes: %s", size, health)
		})
	}
}

package stint

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

func init() { children["memory"] = memoryChild }

// memory is what the system counts as resident memory of this process, in
// bytes: all of it, the process's own, and pages of files.
type memory struct{ all, own, files int64 }

func readMemory() (m memory, err error) {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return m, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		field := map[string]*int64{"VmRSS": &m.all, "RssAnon": &m.own, "RssFile": &m.files}[name]
		if field == nil {
			continue
		}
		if _, err := fmt.Sscanf(value, "%d kB", field); err != nil {
			return m, err
		}
		*field <<= 10
	}
	return m, nil
}

// memoryChild spends once from each of so many ids, in an arbitrary order, and
// prints the most memory that it had.
func memoryChild(args []string) {
	mustNot := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	ids, err := strconv.Atoi(args[1])
	mustNot(err)
	limits, err := NewLimits(Names{flushed: {Label: "flushed", Limit: PerHour(60)}}, nil, nil)
	mustNot(err)
	l, err := Open(args[0], limits, &Options{MaxResident: 10_000})
	mustNot(err)
	var most memory
	for i := range ids {
		key := flushed.Key(fmt.Sprintf("client-%07d", i*7919%ids))
		_, err := l.Spend(key, 1)
		for errors.Is(err, ErrFull) { // the disk is slower than the flood
			_, err = l.Spend(key, 1)
		}
		mustNot(err)
		if i%1000 == 0 || i == ids-1 {
			m, err := readMemory()
			mustNot(err)
			most = memory{max(most.all, m.all), max(most.own, m.own), max(most.files, m.files)}
		}
	}
	say("%d %d %d", most.all, most.own, most.files)
	mustNot(l.Close())
}

// TestMemory measures the resident memory of a program on a small board:
// 10,000 buckets, and a flood of a million new ids. Of the flood only the
// program's own memory is bounded. The rest are pages of the file that were
// read, which the system takes back when it needs them.
func TestMemory(t *testing.T) {
	switch {
	case subprocess.Emulated():
		t.Skip("the system counts the memory of the emulator")
	case raceEnabled:
		t.Skip("the race detector takes memory, too")
	case strconv.IntSize == 64:
		t.Skip("the figures are those of 32 bits: GOARCH=386 go test -run TestMemory -v .")
	}
	for _, c := range []struct {
		ids      int
		all, own int64 // at most, on 32 bits; 0 is no bound
	}{
		{10_000, 12e6, 0},
		{1_000_000, 0, 16e6},
	} {
		t.Run(fmt.Sprint(c.ids, " ids"), func(t *testing.T) {
			t.Setenv("GOGC", "50")
			t.Setenv("GOMEMLIMIT", "12MiB")
			child := startChild(t, "memory", storePath(t), strconv.Itoa(c.ids))
			var m memory
			_, err := fmt.Sscan(child.readLine(t), &m.all, &m.own, &m.files)
			require.NoError(t, err)
			child.finish(t)
			t.Logf("%.1f MB, of which %.1f are its own, and %.1f pages of files",
				float64(m.all)/1e6, float64(m.own)/1e6, float64(m.files)/1e6)
			if strconv.IntSize == 32 {
				assert.True(t, c.all == 0 || m.all <= c.all)
				assert.True(t, c.own == 0 || m.own <= c.own)
			}
		})
	}
}

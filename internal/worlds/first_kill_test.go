package worlds

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

var firstKey = stint.Name(1).Key("once")

// spendsOnce is a program that spends once at Flushed, which it would save an hour
// later at the latest, and then does nothing.
func spendsOnce(args []string) {
	limits, err := stint.NewLimits(stint.Names{1: {Label: "A", Limit: stint.PerDay(3)}})
	if err != nil {
		panic(err)
	}
	l, err := stint.Open(args[0], limits, &stint.Options{FlushInterval: time.Hour})
	if err != nil {
		panic(err)
	}
	if _, err := l.Spend(firstKey, 1); err != nil {
		panic(err)
	}
	subprocess.Say("spent")
	select {}
}

// What a quiet program spends is saved at once. A process is killed after its only
// spend: as soon as the file has it, and, in the long test, 20 ms later, when the
// file must have it unless the machine is busy.
func TestFirstChangeKill(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Millisecond
	stored := func(path string) bool {
		s, err := boltstore.Open(CopyOf(t, path), nil, boltstore.Options{LockTimeout: LongLock, ReadOnly: true})
		if err != nil {
			return false // it was copied during a save
		}
		defer s.Close()
		tat, err := s.Load(uint16(firstKey.Name), firstKey.ID)
		return err == nil && tat != 0
	}
	kept, kills := 0, testlength.Of(100, 1)
	for range kills {
		path := filepath.Join(t.TempDir(), "first.db")
		child := subprocess.Start(t, "spendsOnce", path)
		require.Equal(t, "spent", child.ReadLine(t))
		if testlength.Long {
			<-time.After(soon)
		} else {
			require.Eventually(t, func() bool { return stored(path) }, time.Minute, soon)
		}
		require.NoError(t, child.Cmd.Process.Kill())
		child.Cmd.Wait() // an error: it was killed
		if stored(path) {
			kept++
		}
	}
	t.Logf("%d of %d kills, %v after the spend, forgot nothing", kept, kills, soon)
	if !testlength.Long || !testing.Short() { // -short is for machines that are busy
		require.Equal(t, kills, kept)
	}
}

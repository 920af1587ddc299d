package worlds

import (
	"errors"
	"math"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) {
	subprocess.Children{
		"calendar": killedCalendar, "shares": killedTenants, "hold the file": holdFile,
		"spendsOnce": spendsOnce,
	}.Run()
	debug.SetGCPercent(400) // tests keep little of what they allocate
	m.Run()
}

// fewResident is MaxResident of Limiters that have few buckets. By default a
// Limiter has many more shards, which are most of what New allocates.
const fewResident = 1000

var errDisk = errors.New("the disk is on fire")

// Names with a level each.
const (
	inMemory stint.Name = iota + 1
	flushed
	leased
	synced
)

var levelNames = stint.Names{
	inMemory: {Label: "memory"}, flushed: {Label: "flushed"}, leased: {Label: "leased"}, synced: {Label: "synced"},
}

// levelLimits returns one limit at each level.
func levelLimits(t testing.TB, limit stint.Limit) *stint.Limits {
	defaults := make(map[stint.Name]stint.Limit)
	for name := range levelNames {
		limit.Durability = stint.Durability(name)
		defaults[name] = limit
	}
	return LimitsOf(t, levelNames, defaults)
}

// inFuture is the Spent of a refund of a whole cost: it counts as the present.
var inFuture = time.Unix(0, math.MaxInt64)

func tenADay(t testing.TB) *stint.Limits { return levelLimits(t, stint.PerDay(10)) }

// requireSound requires what is true of every decision.
func requireSound(t testing.TB, d stint.Decision) {
	t.Helper()
	require.Equal(t, d.Allowed, d.RetryAfter == 0, "%+v", d)
	require.GreaterOrEqual(t, d.RetryAfter, time.Duration(0))
	require.GreaterOrEqual(t, d.Remaining, int64(0))
	require.GreaterOrEqual(t, d.ResetAfter, time.Duration(0))
	if d.Limit.Burst > 0 {
		require.LessOrEqual(t, d.Remaining, d.Limit.Burst)
	}
}

func remainingOf(t *testing.T, l *stint.Limiter, key stint.Key) int64 {
	t.Helper()
	d, err := l.Check(key, 0)
	require.NoError(t, err)
	return d.Remaining
}

// holdKey is the key under which a store has the hold of a bucket.
func holdKey(key stint.Key) stint.Key { return stint.Key{Name: stint.Unknown, ID: key.String()} }

// pass lets time pass in a bubble, and waits until all goroutines block.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }

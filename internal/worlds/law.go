package worlds

import (
	"cmp"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stint-go/stint"
)

// Admission is a cost that was admitted between two instants.
type Admission struct{ After, Before, Cost int64 }

// RequireLaw requires that over any stretch of time no more than burst +
// elapsed ÷ T was admitted. An admission may be anywhere between its two
// instants, so each stretch counts as the longest that these allow.
func RequireLaw(t *testing.T, law string, limit stint.Limit, log []Admission) {
	t.Helper()
	slices.SortFunc(log, func(a, b Admission) int { return cmp.Compare(a.Before, b.Before) })
	for _, first := range log {
		sum := int64(0)
		for _, a := range log {
			if a.After < first.After {
				continue
			}
			sum += a.Cost
			if (sum-limit.Burst)*int64(limit.Interval()) > a.Before-first.After {
				t.Fatalf("%s: %d tokens of %v in %d ns", law, sum, limit, a.Before-first.After)
			}
		}
	}
}

// Seed returns the seed in STINT_SEED, or a random one. With the seed that a
// failure has reported, a test goes through the same history:
//
//	STINT_SEED=… go test -run TestWorlds/mem .
func Seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("STINT_SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

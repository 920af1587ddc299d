package modeltest

import (
	"math/rand/v2"
	"os"
	"strconv"
)

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

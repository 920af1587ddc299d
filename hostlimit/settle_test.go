package hostlimit

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

// If the owner closes between the spend of a bound and its settlement, the
// guest, or the owner that it has become, settles it in the same bucket.
func TestSettleAfterOwner(t *testing.T) {
	for level := stint.Flushed; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			path := filePath(t)
			limit := stint.PerHour(7) // of fewer than 8 tokens, so no lease withholds any
			limit.Durability = level
			limits := limitsWith(t, map[stint.Name]stint.Limit{perID: limit})
			now := time.Now()
			opts := &Options{LimiterOptions: stint.Options{Now: func() time.Time { return now }}}
			owner, guest := openOn(t, path, limits, opts), openOn(t, path, limits, opts)
			key := perID.Key("a")
			client := rules.Client{Limiter: guest}
			bound, err := client.Begin(t.Context(), key, 5)
			require.NoError(t, err)
			other, err := client.Begin(t.Context(), key, 1)
			require.NoError(t, err)
			require.NoError(t, owner.Close())
			eventually(t, func() bool { return guest.Role() == RoleOwner }, "the guest takes over")

			left := func() int64 {
				b := bucket(t, guest, key)
				return b.Remaining
			}
			short, err := bound.Settle(2)
			require.NoError(t, err)
			require.Zero(t, short)
			require.EqualValues(t, 4, left())
			short, err = other.Settle(6)
			require.NoError(t, err)
			require.EqualValues(t, 1, short)
			require.Zero(t, left())
		})
	}
}

// The owner is killed while a guest has bounds open, and the guest, which is the
// next owner, settles them. They cost no less than what was used, so nothing is
// admitted twice. At level Synced they cost no more, either. If the answer to a
// settlement is lost, either the bound or what was used counts.
func TestSettleAfterKill(t *testing.T) {
	t.Parallel()
	const burst = 2000
	for name, limit := range map[string]stint.Limit{
		"rolling":  {Burst: burst, Count: 1, Period: time.Hour},
		"calendar": stint.EachYear(burst, time.UTC), // which the guest gives the owner
	} {
		for _, level := range []stint.Durability{stint.Leased, stint.Synced} {
			t.Run(name+", "+level.String(), func(t *testing.T) {
				t.Parallel()
				limit := limit
				limit.Durability = level
				for range testlength.Of(100, 2) {
					settleAfterKill(t, limit)
				}
			})
		}
	}
}

func settleAfterKill(t *testing.T, limit stint.Limit) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	path := filePath(t)
	rolling := stint.Limit{Burst: limit.Burst, Count: 1, Period: time.Hour, Durability: limit.Durability}
	owner := startWorker(t, workerOptions{Path: path, Limit: rolling, ID: "a"}, false)
	owner.waitFor("owner", 1)
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: limit}})
	guest := openOn(t, path, limits, nil)
	require.Equal(t, RoleGuest, guest.Role())

	key := perID.Key("a")
	client := rules.Client{Limiter: guest}
	bounds, costs := make([]*rules.Turn, 16), make([]int64, 16)
	for i := range bounds {
		costs[i] = 1 + rng.Int64N(50)
		turn, err := client.Begin(t.Context(), key, costs[i])
		require.NoError(t, err)
		bounds[i] = turn
	}
	killed, kill, after := make(chan bool), make(chan bool), rng.IntN(len(bounds))
	go func() {
		<-kill
		owner.cmd.Process.Kill()
		close(killed)
	}()
	least, most := int64(0), int64(0) // that the settled bounds cost
	for i, b := range bounds {
		if i == after {
			close(kill)
			if rng.IntN(2) == 0 {
				<-killed
			}
		}
		used := rng.Int64N(100)
		short, err := b.Settle(used)
		if err != nil {
			require.ErrorIs(t, err, ErrNoAnswer)
			least, most = least+min(used, costs[i]), most+max(used, costs[i])
			continue
		}
		require.Zero(t, short)
		least, most = least+used, most+used
	}
	<-killed
	eventually(t, func() bool { return guest.Role() == RoleOwner }, "the guest takes over")
	d, err := guest.SpendAll(stint.Request{Key: key, Cost: limit.Burst, Mode: stint.UpTo})
	require.NoError(t, err)
	left := d.Taken
	require.LessOrEqual(t, least+left, limit.Burst, "tokens that were used are admitted again")
	if limit.Durability == stint.Synced { // a refund keeps the part of a token that has come back since the spend
		require.GreaterOrEqual(t, most+left+1, limit.Burst, "tokens are lost")
	}
}

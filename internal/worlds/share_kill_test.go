package worlds

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/shares"
)

const (
	killTenants   = 4
	killCost      = 40     // the most that one call spends or refunds
	killTotal     = 20_000 // tokens; they do not come back while a process lives
	killFloor     = 2_000  // so most spends are loans, until the total keeps the rest
	killPerToken  = time.Hour
	killFullAgain = killTotal * int64(killPerToken)
)

const (
	shareTotal stint.Name = iota + 1
	shareTenant
	shareFloor
)

var (
	shareNames = stint.Names{
		shareTotal:  {Label: "Total", IDs: stint.Single},
		shareTenant: {Label: "Tenant"},
		shareFloor:  {Label: "TenantFloor", Limit: stint.Unlimited},
	}
	theTotal = shareTotal.Key("")
)

func killLimits(level stint.Durability) *stint.Limits {
	at := func(burst int64, tokens int64) stint.Limit {
		return stint.Limit{Burst: burst, Count: tokens, Period: killTenants * killPerToken, Durability: level}
	}
	var overrides []stint.Override
	for m := range killTenants {
		overrides = append(overrides, stint.Override{Key: shareFloor.Key(fmt.Sprint(m)), Limit: at(killFloor, 1)})
	}
	total := at(killTotal, killTenants)
	ls, err := stint.NewLimits(shareNames.WithLimits(map[stint.Name]stint.Limit{shareTotal: total, shareTenant: total}), overrides...)
	if err != nil {
		panic(err)
	}
	return ls
}

// killLimiter opens the file at an instant at which time stands still.
func killLimiter(path string, level stint.Durability, now int64) *sharesInFile {
	l, err := stint.Open(path, killLimits(level), &stint.Options{FlushInterval: 2 * time.Millisecond, MaxResident: fewResident,
		Now: func() time.Time { return time.Unix(0, now) }})
	if err != nil {
		panic(err)
	}
	above, err := shares.New(l, shares.Tree{Total: shareTotal, Class: shareTenant, Floor: shareFloor})
	if err != nil {
		panic(err)
	}
	return &sharesInFile{l, above}
}

// sharesInFile are shares of a total in a file.
type sharesInFile struct {
	*stint.Limiter
	above *shares.Decider
}

// usedOf returns the tokens that a bucket lacks.
func usedOf(l *sharesInFile, key stint.Key) int64 {
	b, err := l.Bucket(key)
	if err != nil {
		panic(err)
	}
	return b.Limit.Burst - b.Remaining
}

// killedTenants is the process that is killed. Each tenant spends and refunds,
// and reports each change that was acknowledged.
func killedTenants(args []string) {
	level, _ := stint.ParseDurability(args[1])
	now, _ := strconv.ParseInt(args[2], 10, 64)
	l := killLimiter(args[0], level, now)
	var tenants sync.WaitGroup
	for m := range killTenants {
		tenants.Go(func() {
			key, floor, spent := shareTenant.Key(fmt.Sprint(m)), shareFloor.Key(fmt.Sprint(m)), int64(0)
			for {
				cost, before := 1+rand.Int64N(killCost), usedOf(l, floor)
				refund := rand.IntN(8) == 0
				var d stint.Decision
				var err error
				if refund { // no more than was spent: the total is not full
					cost = min(cost, spent)
					d, err = l.above.Refund(key.Cost(cost).SpentAt(inFuture))
					cost = -cost
				} else {
					d, err = l.above.Spend(key, cost)
				}
				if err != nil {
					panic(err)
				}
				if d.Allowed {
					spent += cost
					subprocess.Say("%d %d %d", m, usedOf(l, floor)-before, cost)
				}
			}
		})
	}
	tenants.Wait()
}

// killUsed has the tokens that the buckets lack, as acknowledged.
type killUsed struct {
	floors [killTenants]int64
	total  int64
}

// TestShareKill kills a process again and again. Each time the file has what
// the level promises of law 2: the total holds what all floors hold together.
func TestShareKill(t *testing.T) {
	t.Parallel()
	kills := testlength.Of(100, 2)
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "shares.db")
			now := modeltest.NewClock().Nanos()
			var own, short int64 // own tokens that were acknowledged, and most that the total lacked
			for range kills {
				l := killLimiter(path, level, now)
				if usedOf(l, theTotal) > killTotal/4 {
					require.NoError(t, l.Close())
					now += killFullAgain
					l = killLimiter(path, level, now)
				}
				used := killUsed{total: usedOf(l, theTotal)}
				for m := range used.floors {
					used.floors[m] = usedOf(l, shareFloor.Key(fmt.Sprint(m)))
				}
				require.NoError(t, l.Close())
				p := subprocess.Start(t, "shares", path, level.String(), fmt.Sprint(now))
				for range 1 + rand.IntN(1500) {
					own += noted(t, p.ReadLine(t), &used)
				}
				require.NoError(t, p.Cmd.Process.Kill())
				for p.Lines.Scan() {
					own += noted(t, p.Lines.Text(), &used)
				}
				p.Cmd.Wait() // it was killed
				short = max(short, killCheck(t, path, level, now, &used))
			}
			t.Logf("%d kills, %d own tokens; the total lacked at most %d", kills, own, short)
		})
	}
}

// noted adds what a line of the process says to the used tokens.
func noted(t *testing.T, line string, used *killUsed) int64 {
	var m int
	var own, cost int64
	_, err := fmt.Sscan(line, &m, &own, &cost)
	require.NoError(t, err, line)
	used.floors[m] += own
	used.total += cost
	return max(0, own)
}

// killCheck requires what a level promises of the file. It returns how many
// tokens the total lacks of those that the floors hold.
func killCheck(t *testing.T, path string, level stint.Durability, now int64, used *killUsed) int64 {
	l := killLimiter(path, level, now)
	defer l.Close()
	total := usedOf(l, theTotal)
	hold, forgotten := int64(0), int64(0)
	for m, used := range used.floors {
		found := usedOf(l, shareFloor.Key(fmt.Sprint(m)))
		hold += killFloor - found
		forgotten += max(0, used+killCost-found) // with the one that was under way
		if level == stint.Synced {
			require.InDelta(t, used, found, killCost)
		}
		if level == stint.Leased {
			require.LessOrEqual(t, used, found+killCost)
		}
	}
	short := hold - (killTotal - total)
	allowed := map[stint.Durability]int64{stint.Flushed: forgotten, stint.Leased: killTotal / 8}[level]
	require.LessOrEqual(t, short, allowed)
	switch level {
	case stint.Memory:
		require.Zero(t, total)
	case stint.Leased:
		require.LessOrEqual(t, used.total, total+killTenants*killCost)
	case stint.Synced:
		require.InDelta(t, used.total, total, killTenants*killCost)
	}
	// However much the total lacks, nothing puts it into debt. If it lacks
	// nothing, each floor pays all that it holds.
	var back []stint.Request
	for m := range used.floors {
		key := shareTenant.Key(fmt.Sprint(m))
		left := killFloor - usedOf(l, shareFloor.Key(key.ID))
		d, err := l.above.Spend(key, left)
		require.NoError(t, err)
		if short <= 0 && !d.Allowed {
			t.Fatalf("law 3: tenant %d is denied %d tokens of its floor: %+v", m, left, d)
		}
		if d.Allowed {
			back = append(back, stint.Request{Key: key, Cost: left})
		}
	}
	b, err := l.Bucket(theTotal)
	require.NoError(t, err)
	require.LessOrEqual(t, b.ResetAfter, b.Limit.Tolerance())
	for _, r := range back {
		_, err := l.above.Refund(r.Key.Cost(r.Cost).SpentAt(inFuture))
		require.NoError(t, err)
	}
	return short
}

package redislimit

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// A spend marks the bucket with the generation of its limits, so that the bucket is
// cut down only once for each.
func TestMark(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l := newLimiter(t, stint.PerHour(20), func(o *Options) { o.Now = clock.now })
	s, _ := commonServer(t)
	for range 3 {
		require.True(t, l.spend(t, perID.Key("a"), 1).Allowed)
		value := s.cli("GET", l.opts.keyOf(perID.Key("a"))).(string)
		require.Equal(t, fmt.Sprint(l.inForce.Load().since.Load()), strings.Fields(value)[1])
		clock.pass(time.Second)
		require.NoError(t, l.SetLimits(l.Limits()))
	}
}

// TestStep compares 20,000 spends of the script on the server with arithmetic
// on whole numbers of any size.
func TestStep(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, stint.PerHour(1), nil)
	rnd := rand.New(rand.NewPCG(1, 2))
	const together, calls = 64, 313
	for call := range calls {
		now := []int64{0, 1, 999_999_999, 1_000_000_000, script.EndOfTime, script.EndOfTime - 1, rnd.Int64N(script.EndOfTime),
			1_700_000_000_000_000_000 + rnd.Int64N(1e18)}[rnd.IntN(8)]
		keys, set := make([]string, together), []string{"MSET"}
		args := []string{strconv.FormatInt(now, 10), "0"}
		var tats, needs, taus [together]int64
		for i := range keys {
			interval := []int64{1, 2, 999_999_999, 1_000_000_000, 1_000_000_001, 1 + rnd.Int64N(1e18)}[rnd.IntN(6)]
			most := int64(script.MaxTolerance) / interval
			burst := []int64{1, most, 1 + rnd.Int64N(most)}[rnd.IntN(3)]
			cost := []int64{0, 1, burst, rnd.Int64N(burst + 1)}[rnd.IntN(4)]
			needs[i], taus[i] = cost*interval, burst*interval
			edge := now + taus[i] - needs[i] // the last TAT that allows
			tats[i] = max(0, []int64{0, now, now - 1, now + 1, edge, edge + 1, edge - 1, now + taus[i], math.MaxInt64,
				rnd.Int64(), now + rnd.Int64N(taus[i])}[rnd.IntN(11)])
			keys[i] = fmt.Sprintf("step:%d:%d", call, i)
			set = append(set, keys[i], fmt.Sprintf("%d 0", tats[i]))
			r := script.Request{Mode: stint.SpendOnly, Need: needs[i], Tolerance: taus[i]}
			args = append(args, r.Record(script.Spend, i < together-1))
		}
		answers, stored := l.decided(t, set, keys, args)
		for i := range keys {
			base := big.NewInt(max(now, tats[i]))
			next := new(big.Int).Add(base, big.NewInt(needs[i]))
			end := new(big.Int).Add(big.NewInt(now), big.NewInt(taus[i]))
			if needs[i] == 0 { // no tokens are always there
				end.Add(big.NewInt(now), big.NewInt(script.MaxTolerance))
			}
			tat, wait := next.Int64(), int64(0)
			if next.Cmp(end) > 0 {
				tat, wait = tats[i], new(big.Int).Sub(next, end).Int64()
			} else if needs[i] == 0 {
				tat = base.Int64()
			}
			got := answers[i]
			what := fmt.Sprintf("tat %d, now %d, need %d, τ %d", tats[i], now, needs[i], taus[i])
			require.Equal(t, []int64{tat, wait}, []int64{got.TAT, got.Wait}, what)
			value, _ := stored[i].(string)
			if wait != 0 || needs[i] == 0 {
				require.Equal(t, fmt.Sprintf("%d 0", tats[i]), value, what)
			} else {
				mark := int64(0)
				if tats[i] <= now {
					mark = now / 1000
				}
				require.Equal(t, fmt.Sprint(tat, mark), value, what)
			}
		}
	}
}

// decided stores values, runs the script, and returns its answers and the
// values after it.
func (l *Limiter) decided(t *testing.T, set, keys, args []string) (answers []script.Request, stored []any) {
	t.Helper()
	_, err := l.client.Do(t.Context(), set...)
	require.NoError(t, err)
	reply, _, err := l.server.Eval(t.Context(), script.Decisions, keys, args, 0)
	require.NoError(t, err)
	answers = make([]script.Request, len(keys))
	batch := []*script.Trip{{}}
	for i := range answers {
		batch[0].Requests = append(batch[0].Requests, &answers[i])
	}
	require.NoError(t, errorOf(script.Parse(batch, reply)))
	values, err := l.client.Do(t.Context(), append([]string{"MGET"}, keys...)...)
	require.NoError(t, err)
	return answers, values.([]any)
}

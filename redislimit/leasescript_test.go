package redislimit

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/model"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// TestLeaseScript compares the script on the server with the Go function of the
// simulated network.
func TestLeaseScript(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, stint.PerHour(1), nil)
	rnd := rand.New(rand.NewPCG(20, 3))
	const together = 50
	calls := 100
	if testlength.Long {
		calls = 2000
	}
	granted, gaveBack, denied, writes := 0, 0, 0, 0
	for call := range calls {
		now := []int64{0, 1, 999_999_999, 1_000_000_000, script.EndOfTime, script.EndOfTime - 1, rnd.Int64N(script.EndOfTime),
			1_700_000_000_000_000_000 + rnd.Int64N(1e18)}[rnd.IntN(8)]
		generation := []int64{0, now / 1000, rnd.Int64N(now/1000 + 1)}[rnd.IntN(3)]
		args := []string{strconv.FormatInt(now, 10), strconv.FormatInt(generation, 10)}
		set := []string{"MSET"}
		var keys []string
		var models [together]model.Lease
		var wants [together]script.LeaseAnswer
		var before [together]model.Lease
		for i := range together {
			interval := []int64{1, 2, 999_999_999, 1_000_000_000, 1_000_000_001, 1 + rnd.Int64N(1e18)}[rnd.IntN(6)]
			most := int64(script.MaxTolerance) / interval
			burst := []int64{1, most, 1 + rnd.Int64N(most), min(most, 1+rnd.Int64N(1000))}[rnd.IntN(4)]
			tolerance := burst * interval
			part := func(of int64) int64 { return []int64{0, 1, of, rnd.Int64N(of + 1)}[rnd.IntN(4)] }
			first := part(burst)
			need := max(first, part(burst))
			if first == 0 {
				need = 0
			}
			row := [12]int64{interval, tolerance, max(tolerance, part(script.MaxTolerance)), first * interval,
				need * interval, part(burst/8) * interval}
			if rnd.IntN(8) == 0 {
				row = [12]int64{}
			}
			for j := 6; j < 12; j += 3 {
				if rnd.IntN(2) == 0 {
					all := part(burst)
					at := max(0, now-[]int64{0, 1, part(all * interval), -1, part(now)}[rnd.IntN(5)])
					row[j], row[j+1], row[j+2] = part(all)*interval, all*interval, at
				}
			}
			m := model.Lease{TAT: max(0, []int64{0, now, now - 1, now + 1, now + tolerance, now + part(tolerance),
				now + tolerance - row[3], now + tolerance - row[3] + 1, rnd.Int64()}[rnd.IntN(9)])}
			m.Mark = part(min(1e15, now/1000+1000))
			if rnd.IntN(10) == 0 {
				m.Hold = max(1, now-2+rnd.Int64N(5)+part(script.MaxTolerance))
			}
			keys = append(keys, fmt.Sprintf("lease:%d:%d", call, i))
			v := fmt.Sprintf("%d %d", m.TAT, m.Mark)
			if m.Hold > 0 {
				v += fmt.Sprintf(" %d", m.Hold)
			}
			set = append(set, keys[i], v)
			for _, a := range row {
				args = append(args, strconv.FormatInt(a, 10))
			}
			before[i] = m
			wants[i] = m.Step(now, generation, row)
			models[i] = m
		}
		_, err := l.client.Do(t.Context(), set...)
		require.NoError(t, err)
		reply, _, err := l.server.Eval(t.Context(), script.Leasing, keys, args, 0)
		require.NoError(t, err)
		var answers []*script.LeaseRequest
		for range together {
			answers = append(answers, new(script.LeaseRequest))
		}
		require.NoError(t, script.ParseLeases(answers, reply))
		stored, err := l.client.Do(t.Context(), append([]string{"MGET"}, keys...)...)
		require.NoError(t, err)
		for i, want := range wants {
			what := fmt.Sprintf("now %d, generation %d, %+v, %v", now, generation, before[i], args[2+12*i:14+12*i])
			require.Equal(t, want, answers[i].LeaseAnswer, what)
			value := stored.([]any)[i]
			if models[i].TAT == before[i].TAT {
				require.Contains(t, value, fmt.Sprintf("%d ", models[i].TAT), what)
			} else {
				require.Equal(t, models[i].Value(now), value, what)
				writes++
			}
			if models[i].TAT < before[i].TAT {
				gaveBack++
			}
			if want.Granted > 0 {
				granted++
			}
			if want.Wait > 0 {
				denied++
			}
		}
	}
	t.Logf("%d cases: %d granted, %d denied, %d gave back or cut down", calls*together, granted, denied, gaveBack)
	for _, n := range []int{granted, gaveBack, denied, writes} {
		require.Greater(t, n, calls)
	}
}

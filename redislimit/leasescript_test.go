package redislimit

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// leaseServer is the lease script as a Go function, on one bucket.
type leaseServer struct {
	tat, mark, hold int64
	plainRefund     bool // a mutant: unused tokens go back whole
}

// step runs the script with the arguments of one bucket.
func (s *leaseServer) step(now, generation int64, args [12]int64) answer {
	interval, tolerance, clamp, first, need, want := args[0], args[1], args[2], args[3], args[4], args[5]
	for i := 6; i < 12; i += 3 {
		unused, granted, at := args[i], args[i+1], args[i+2]
		back := max(0, min(unused, granted-max(0, now-at)))
		if s.plainRefund {
			back = unused
		}
		if s.tat > now {
			s.tat = max(now, s.tat-back)
		}
	}
	switch {
	case s.tat <= now:
		s.mark = now / 1000
	case clamp > 0 && s.mark < generation:
		s.mark = generation
		s.tat = min(s.tat, now+clamp)
	}
	a := answer{now: now, tat: s.tat}
	if s.hold > now {
		a.hold = s.hold
	}
	if interval == 0 {
		return a
	}
	base := max(s.tat, now)
	a.wait = max(0, base+first-now-tolerance, a.hold-now)
	if a.wait == 0 {
		free := now + tolerance - base
		a.granted = max(min(need, free), min(want, free/8)) / interval * interval
		if a.granted > 0 {
			s.tat = base + a.granted
		}
	}
	a.tat = s.tat
	return a
}

// value returns the value of the server's key then, or nil if there is no key.
func (s *leaseServer) value(now int64) any {
	end := s.tat
	if s.hold > now {
		end = max(end, s.hold)
	}
	if end <= now {
		return nil
	}
	v := fmt.Sprintf("%d %d", s.tat, s.mark)
	if s.hold > now {
		v += fmt.Sprintf(" %d", s.hold)
	}
	return v
}

// TestLeaseScript compares the script on the server with the Go function of the
// simulated network.
func TestLeaseScript(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, stint.PerHour(1), nil)
	rnd := rand.New(rand.NewPCG(20, 3))
	const together = 50
	calls := 100
	if long {
		calls = 2000
	}
	granted, gaveBack, denied, writes := 0, 0, 0, 0
	for call := range calls {
		now := []int64{0, 1, 999_999_999, 1_000_000_000, endOfTime, endOfTime - 1, rnd.Int64N(endOfTime),
			1_700_000_000_000_000_000 + rnd.Int64N(1e18)}[rnd.IntN(8)]
		generation := []int64{0, now / 1000, rnd.Int64N(now/1000 + 1)}[rnd.IntN(3)]
		args := []string{strconv.FormatInt(now, 10), strconv.FormatInt(generation, 10)}
		set := []string{"MSET"}
		var keys []string
		var models [together]leaseServer
		var wants [together]answer
		var before [together]leaseServer
		for i := range together {
			interval := []int64{1, 2, 999_999_999, 1_000_000_000, 1_000_000_001, 1 + rnd.Int64N(1e18)}[rnd.IntN(6)]
			most := int64(maxTolerance) / interval
			burst := []int64{1, most, 1 + rnd.Int64N(most), min(most, 1+rnd.Int64N(1000))}[rnd.IntN(4)]
			tolerance := burst * interval
			part := func(of int64) int64 { return []int64{0, 1, of, rnd.Int64N(of + 1)}[rnd.IntN(4)] }
			first := part(burst)
			need := max(first, part(burst))
			if first == 0 {
				need = 0
			}
			row := [12]int64{interval, tolerance, max(tolerance, part(maxTolerance)), first * interval,
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
			m := leaseServer{tat: max(0, []int64{0, now, now - 1, now + 1, now + tolerance, now + part(tolerance),
				now + tolerance - row[3], now + tolerance - row[3] + 1, rnd.Int64()}[rnd.IntN(9)])}
			m.mark = part(min(1e15, now/1000+1000))
			if rnd.IntN(10) == 0 {
				m.hold = max(1, now-2+rnd.Int64N(5)+part(maxTolerance))
			}
			keys = append(keys, fmt.Sprintf("lease:%d:%d", call, i))
			v := fmt.Sprintf("%d %d", m.tat, m.mark)
			if m.hold > 0 {
				v += fmt.Sprintf(" %d", m.hold)
			}
			set = append(set, keys[i], v)
			for _, a := range row {
				args = append(args, strconv.FormatInt(a, 10))
			}
			before[i] = m
			wants[i] = m.step(now, generation, row)
			models[i] = m
		}
		_, err := l.client.Do(t.Context(), set...)
		require.NoError(t, err)
		reply, _, err := l.eval(t.Context(), leasing, keys, args, false)
		require.NoError(t, err)
		answers, err := parseAnswers(reply, together)
		require.NoError(t, err)
		stored, err := l.client.Do(t.Context(), append([]string{"MGET"}, keys...)...)
		require.NoError(t, err)
		for i, want := range wants {
			what := fmt.Sprintf("now %d, generation %d, %+v, %v", now, generation, before[i], args[2+12*i:14+12*i])
			require.Equal(t, want, answers[i], what)
			value := stored.([]any)[i]
			if models[i].tat == before[i].tat {
				require.Contains(t, value, fmt.Sprintf("%d ", models[i].tat), what)
			} else {
				require.Equal(t, models[i].value(now), value, what)
				writes++
			}
			if models[i].tat < before[i].tat {
				gaveBack++
			}
			if want.granted > 0 {
				granted++
			}
			if want.wait > 0 {
				denied++
			}
		}
	}
	t.Logf("%d cases: %d granted, %d denied, %d gave back or cut down", calls*together, granted, denied, gaveBack)
	for _, n := range []int{granted, gaveBack, denied, writes} {
		require.Greater(t, n, calls)
	}
}

package cache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// spends returns how many spends of one token each wait for a commit, and how many
// commits they make, until a bucket is empty, if each commit has ended before the
// next spend.
func spends(lease gcra.Lease, tokens, interval int64) (waits, commits int64) {
	tat, flags := int64(1_800_000_000e9), uint64(0)
	for range tokens {
		to := tat + interval
		stored, when := renew(&lease, tat, to, flags)
		if when == needFirst {
			waits++
		}
		if when != needNone {
			commits++
		}
		if _, next := lease.Of(to); when != needNone && stored == next && next > to {
			flags = table.Covered | table.Ahead
		}
		tat = to
	}
	return waits, commits
}

func rollingLease(tolerance int64) gcra.Lease {
	var r gcra.Rule
	r.SetRolling(tolerance, 1, 1)
	return r.Lease
}

func quotaLease(quota int64) gcra.Lease {
	var r gcra.Rule
	r.SetQuota(quota, calendar.Of(calendar.Day, nil, 0).Calendar())
	return r.Lease
}

// docs/choosing.md says which small bursts wait.
func TestSmallLeases(t *testing.T) {
	const token, rolling = 1, 60e9
	for burst := int64(1); burst <= 100; burst++ {
		waits, _ := spends(rollingLease(burst*rolling), burst, rolling)
		switch {
		case burst <= 8:
			require.Equal(t, burst, waits, burst)
		case burst < 16:
			require.Less(t, waits, burst, burst)
		default:
			require.LessOrEqual(t, waits, int64(1), burst)
		}
		waits, _ = spends(quotaLease(burst), burst, token)
		require.EqualValues(t, 1, waits, burst)
	}
}

// A quota of the calendar withholds at most a hundredth of it after a crash, or one
// token. Its leases are renewed more often than those of a rolling limit of the
// same burst: here is how often, for a thousand spends.
func TestQuotaLeases(t *testing.T) {
	for quota := int64(1); quota < 100_000; quota += 1 + quota/50 {
		lease := quotaLease(quota)
		for used := range min(quota, 2+quota/100) {
			if _, next := lease.Of(used); next-used > max(1, quota/100) {
				t.Fatalf("of %d, %d are withheld", quota, next-used)
			}
		}
	}
	for _, c := range []struct{ quota, perThousand, rolling int64 }{
		{100, 1000, 167}, {1000, 200, 17}, {10_000, 20, 2}, {100_000, 3, 1},
	} {
		n := max(1000, c.quota)
		_, commits := spends(quotaLease(c.quota), n, 1)
		require.InDelta(t, c.perThousand, commits*1000/n, 1, c.quota)
		_, commits = spends(rollingLease(c.quota), n, 1)
		require.InDelta(t, c.rolling, commits*1000/n, 2, c.quota)
	}
}

// A spend waits for the store unless the store has the half lease that it ends in.
func TestRenew(t *testing.T) {
	lease := rollingLease(1600) // a half is 100
	for _, c := range []struct {
		from, to int64
		flags    uint64
		when     need
	}{
		{1010, 1020, table.Covered | table.Ahead, needNone},
		{1010, 1020, table.Covered | table.Pending, needNone},
		{1010, 1020, table.Covered, needSoon},
		{1010, 1100, table.Covered, needSoon},
		{1010, 1110, table.Covered | table.Ahead, needSoon},
		{1010, 1110, table.Covered, needFirst},
		{1010, 1110, table.Covered | table.Pending, needFirst},
		{1010, 1210, table.Covered | table.Ahead, needFirst},
		{1010, 1020, 0, needFirst},
		{1010, 1020, table.Pending, needFirst},
	} {
		_, when := renew(&lease, c.from, c.to, c.flags)
		require.Equal(t, c.when, when, "%+v", c)
	}
}

package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestSeries(t *testing.T) {
	start := time.Unix(1_000_000_000, 0) // the beginning of a slot
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	var s series
	s.add(at(0), at(5), 50, 5)
	s.add(at(5), at(15), 20, 0)
	allowed, denied := s.perSecond()
	require.Len(t, allowed, slots-1)
	require.Equal(t, []float64{0, 10, 2, 2}, allowed[slots-5:])
	require.Equal(t, []float64{0, 1, 0, 0}, denied[slots-5:])

	s.add(at(15), at(16), 100, 0)
	s.add(at(16), at(21), 100, 0)
	allowed, _ = s.perSecond()
	require.InDeltaSlice(t, []float64{2, 36}, allowed[slots-3:], 1e-9, "without the current slot")

	s.advance(at(21 + 300))
	allowed, _ = s.perSecond()
	require.Equal(t, make([]float64, slots-1), allowed, "all slots are over")

	s.add(at(321), at(321+3000), 3000, 0)
	allowed, _ = s.perSecond()
	require.InDelta(t, 1, allowed[0], 1e-9, "spread over the idle time")
}

func TestTopK(t *testing.T) {
	t.Run("flood", func(t *testing.T) {
		var top topK
		now := time.Unix(1_000_000_000, 0)
		heavy := perKey.Key("heavy")
		for i := range 10_000 {
			top.add(now, perKey.Key(fmt.Sprint(i)), 1)
			if i%20 == 0 {
				top.add(now, heavy, 1)
			}
		}
		first := top.counts(now)[0]
		require.Equal(t, heavy, first.key)
		require.LessOrEqual(t, first.n, int64(500), "only what is certain")
		require.Greater(t, first.n, int64(250))

		top.add(now.Add(generation), heavy, 7)
		require.Equal(t, first.n+7, top.counts(now.Add(generation))[0].n)
		top.add(now.Add(2*generation), heavy, 1)
		require.Equal(t, []counter{{key: heavy, n: 8}}, top.counts(now.Add(2*generation)))
		require.Empty(t, top.counts(now.Add(4*generation)))
		top.add(now.Add(9*generation), heavy, 1)
		require.Equal(t, []counter{{key: heavy, n: 1}}, top.counts(now.Add(9*generation)))
	})
	// An id may be a part of a header field of a megabyte.
	t.Run("keeps no request in memory", func(t *testing.T) {
		header := strings.Repeat("id=0123456789; ", maxCounters)
		begin := uintptr(unsafe.Pointer(unsafe.StringData(header)))
		inside := func(key stint.Key) bool {
			return uintptr(unsafe.Pointer(unsafe.StringData(key.ID)))-begin < uintptr(len(header))
		}
		require.True(t, inside(perKey.Key(header[1:])))
		var cs counters
		for n := range maxCounters + 1 { // one replaces another
			cs.add(perKey.Key(header[n:n+12]), 1)
			cs.add(perKey.Key(header[n:n+13]), 1)
		}
		for i, c := range cs.all {
			require.False(t, inside(c.key))
			require.Equal(t, i, cs.index[c.key])
		}
		for key := range cs.index {
			require.False(t, inside(key))
		}
	})
}

// Denials are shown for ten minutes at most, and those of the last five always.
func TestGenerations(t *testing.T) {
	var top topK
	key, began := perKey.Key("x"), time.Unix(0, 0)
	shown := func(at time.Duration) (n int64) {
		for _, c := range top.counts(began.Add(at)) {
			n += c.n
		}
		return n
	}
	last := 10*time.Minute - time.Second
	top.add(began, key, 50)
	top.add(began.Add(last), key, 1)
	require.EqualValues(t, 51, shown(last))
	require.EqualValues(t, 1, shown(last+5*time.Minute-time.Second))
	require.Zero(t, shown(2*last))
	top.add(began, key, 1) // by a clock that is behind
	require.EqualValues(t, 52, shown(0))
}

package stint

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func limitsOf(t testing.TB, names Names, defaults map[Name]Limit) *Limits {
	t.Helper()
	ls, err := NewLimits(names, defaults, nil)
	require.NoError(t, err)
	return ls
}

// A shard is told apart from a map by nothing that is done to it.
func TestShardIsAMap(t *testing.T) {
	limits := limitsOf(t, Names{1: {Label: "a"}, 2: {Label: "b"}}, map[Name]Limit{1: PerHour(5), 2: PerHour(5)})
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tab := newTable(limits, 1)
		want := make(map[Key]int64)
		keys := make([]Key, 600)
		for i := range keys {
			keys[i] = Name(1 + i%2).Key(fmt.Sprintf("%d-%0*d", i, rnd.IntN(9), 0))
		}
		var s *shard
		for step := range 20_000 {
			key := keys[rnd.IntN(len(keys))]
			h := tab.hash(key)
			one, _ := tab.shard(Name(1).Key("x"))
			s = one // every key in one shard, whatever the hash says
			if len(key.ID) > 8 {
				continue
			}
			i, ok := s.findLocked(key, h)
			tat, wanted := want[key]
			require.Equal(t, wanted, ok, "seed %d step %d", seed, step)
			switch {
			case !ok:
				if len(want) < 40*(1+step/2000) {
					s.insertLocked(key, h, int64(step), 1, flagDirty)
					want[key] = int64(step)
				}
			case rnd.IntN(3) == 0:
				require.Equal(t, tat, s.at(i).tat())
				s.removeLocked(i)
				delete(want, key)
			default:
				require.Equal(t, tat, s.at(i).tat())
				s.writeLocked(i, int64(step))
				want[key] = int64(step)
			}
			require.EqualValues(t, len(want), s.n)
			require.EqualValues(t, len(want), s.dirty)
			require.EqualValues(t, len(want), tab.resident.Load())
		}
		var c collector
		c.all = true
		c.collectLocked(s)
		require.Len(t, c.changes, len(want), "seed %d: every dirty slot is found in its group", seed)
		require.Zero(t, s.dirty)
		for _, change := range c.changes {
			require.Equal(t, want[change.Key], change.TAT)
		}
	}
}

// A shard of more slots than it has groups: each dirty one is found, and none of the others is saved.
func TestDirtyInALargeShard(t *testing.T) {
	tab := newTable(limitsOf(t, Names{1: {Label: "a"}}, map[Name]Limit{1: PerHour(5)}), 1)
	s, _ := tab.shard(Name(1).Key("x"))
	const n = 3 * dirtyGroups
	want := make(map[Key]int64)
	for i := range n {
		key := Name(1).Key(fmt.Sprint(i)) // in this shard, whatever the hash says
		s.insertLocked(key, tab.hash(key), 1, 1, flagStored)
		if i%7 == 0 {
			want[key] = int64(i + 2)
		}
	}
	require.NotZero(t, s.groups)
	for key, tat := range want {
		i, ok := s.findLocked(key, tab.hash(key))
		require.True(t, ok)
		s.writeLocked(i, tat)
	}
	s.markGroup(s.capacity.Load() - 1) // the last group has a mark, too
	c := collector{all: true}
	c.collectLocked(s)
	got := make(map[Key]int64)
	for _, change := range c.changes {
		got[change.Key] = change.TAT
	}
	require.Equal(t, want, got)
	require.EqualValues(t, n, s.n)
}

// Each time that eviction comes by, which goes and which stays.
func TestEvict(t *testing.T) {
	const now = 1000
	buckets := []struct {
		what  string
		tat   int64
		flags uint64
		goes  int // when it comes by for so many times; 0: never
		taken int // likewise, where it takes what has been used
	}{
		{"as it is stored, and not used", now + 1, flagStored, 1, 1},
		{"as it is stored, and used: it has a second chance", now + 1, flagStored | flagUsed, 2, 1},
		{"not saved", now + 1, flagDirty | flagStored, 0, 0},
		{"in a commit", now + 1, flagStored | flagPending, 0, 0},
		{"full again, and the store knows nothing of it", now, flagDirty | flagUsed, 1, 1},
		{"full again, which the store does not know", now, flagDirty | flagStored | flagUsed, 0, 0},
	}
	for _, used := range []bool{false, true} {
		tab := newTable(limitsOf(t, Names{1: {Label: "a"}}, map[Name]Limit{1: PerHour(5)}), 1)
		s, _ := tab.shard(Name(1).Key("x"))
		s.resizeLocked(64)
		var keys []Key
		for i := 0; len(keys) < len(buckets); i++ {
			key := Name(1).Key(fmt.Sprint(i)) // in this shard, whatever the hash says,
			h := tab.hash(key)
			if home := s.home(h); home < 16 || home >= 48 { // and where one time around looks at it once
				continue
			}
			b := buckets[len(keys)]
			s.insertLocked(key, h, b.tat, 1, b.flags)
			keys = append(keys, key)
		}
		require.EqualValues(t, 64, s.capacity.Load())
		for round := 1; round <= 3; round++ {
			s.hand = 0
			for range 4 { // sixteen slots each
				s.evictLocked(now, used)
			}
			for i, b := range buckets {
				goes := b.goes
				if used {
					goes = b.taken
				}
				_, resident := s.findLocked(keys[i], tab.hash(keys[i]))
				require.Equal(t, goes == 0 || round < goes, resident, "%s: round %d, used %v", b.what, round, used)
			}
		}
	}
}

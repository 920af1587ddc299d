package cache

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/queue"
)

// TestShardLayout keeps what every decision changes in the shard's first cache
// line, what it needs before the lock in the second, and shards out of each
// other's lines. A layout of 288 bytes made decisions 11 % slower, and with all in
// one line two threads took a third longer on a thousand buckets. A rule of 96
// bytes lies in two lines, and one of 104 in three at times.
func TestShardLayout(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layout is that of 64 bits")
	}
	var s Shard
	const line = 64
	require.Zero(t, unsafe.Sizeof(s)%line, "%d bytes", unsafe.Sizeof(s))
	require.LessOrEqual(t, unsafe.Sizeof(s), uintptr(256))
	require.EqualValues(t, line, unsafe.Offsetof(s.Slots))
	require.EqualValues(t, 8, unsafe.Offsetof(s.Limits))

	var n Lane // 128 bytes are allocated at a multiple of 128
	require.EqualValues(t, 2*line, unsafe.Sizeof(n))
	require.EqualValues(t, line, unsafe.Offsetof(n.tat))
	require.EqualValues(t, line, unsafe.Sizeof(tally{}[0]))
}

// One call locks each shard once, or it would wait for itself.
func TestLockAll(t *testing.T) {
	const few = 4
	var shards [few]Shard
	for i := range shards {
		shards[i].Order = uint32(i) << 16
	}
	all := 1
	for n := range few + 1 {
		for choice := range all { // of n shards, some of them equal
			at := make([]*Shard, n)
			want := make(map[*Shard]bool)
			for i := range at {
				at[i] = &shards[choice%few]
				want[at[i]] = true
				choice /= few
			}
			locked := LockAll(at)
			require.Len(t, locked, len(want))
			for _, s := range locked {
				require.True(t, want[s])
				require.False(t, s.mu.TryLock(), "it is not locked")
			}
			UnlockAll(locked)
			for i := range shards {
				require.True(t, shards[i].mu.TryLock(), "it is still locked")
				shards[i].UnlockFast()
			}
		}
		all *= few
	}
}

// Calls that lock the same shards in different orders do not wait for each other
// for ever.
func TestLockAllTogether(t *testing.T) {
	const few = 4
	var shards [few]Shard
	for i := range shards {
		shards[i].Order = uint32(i)
	}
	var wg sync.WaitGroup
	spent := [few]int{}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0}, {1, 3}} {
		wg.Go(func() {
			for range 20_000 {
				var at []*Shard
				for _, i := range order {
					at = append(at, &shards[i])
				}
				locked := LockAll(at)
				for _, i := range order {
					spent[i]++
				}
				UnlockAll(locked)
			}
		})
	}
	wg.Wait()
	require.Equal(t, [...]int{60_000, 60_000, 60_000, 60_000}, spent)
}

// A turn that comes puts the TAT ahead, as a decision does.
func TestDecidedAfter(t *testing.T) {
	r := newRig(t, gcra.Flushed, 1000)
	key := Key{1, "a"}
	now := r.now()
	b, err := r.lockOne(key, ByRule)
	require.NoError(t, err)
	defer b.Shard.Unlock()
	s, h := b.Shard, b.Hash
	b.JoinLocked(&queue.Turn{At: now + 1, Cost: 1}, nil, now-1)
	i, _ := s.findLocked(key, h)
	s.AdvanceLocked(s.At(i), s.GateLocked(key), now)
	require.False(t, s.DecidedAfterLocked(now-1), "no turn has come")
	s.AdvanceLocked(s.At(i), s.GateLocked(key), now+1)
	require.True(t, s.DecidedAfterLocked(now))
	require.False(t, s.DecidedAfterLocked(now+1))
}

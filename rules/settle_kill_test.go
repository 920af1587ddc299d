package rules_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

const (
	childVar = "STINT_TEST_SETTLE"

	tokens  stint.Name = 1
	burst              = 3000
	perTick            = time.Millisecond // a token comes back
	bound              = 1000             // each request spends it
	streams            = 8                // requests at the same time
)

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		serve(os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// open opens the file with a clock.
func open(path string, level stint.Durability, clock *atomic.Int64) (*stint.Limiter, error) {
	l := stint.Limit{Burst: burst, Count: 1, Period: perTick, Durability: level}
	limits, err := stint.NewLimits(stint.Names{tokens: {Label: "tokens", ID: stint.Shared, Limit: l}})
	if err != nil {
		return nil, err
	}
	return stint.Open(path, limits, &stint.Options{FlushInterval: 20 * time.Millisecond,
		Now: func() time.Time { return time.Unix(0, clock.Load()) }})
}

// serve is the process that is killed. Its streams spend a bound, go on for a
// while, and settle a true cost. It writes a line when it has an answer, while
// time stands still: the kind of event, the instant, the stream and two numbers.
func serve(args []string) {
	level, _ := stint.ParseDurability(args[1])
	now, _ := strconv.ParseInt(args[2], 10, 64)
	var clock atomic.Int64
	clock.Store(now)
	lim, err := open(args[0], level, &clock)
	if err != nil {
		panic(err)
	}
	door := rules.New(lim, nil, rules.Rule[job, int]{
		Key:  func(job) (stint.Key, error) { return tokens.Key(""), nil },
		Cost: bound, Settle: true})
	var moving sync.RWMutex // held to move the clock
	moved := sync.NewCond(moving.RLocker())
	line := func(kind string, stream int, a, b int64) { fmt.Println(kind, clock.Load(), stream, a, b) }
	for s := range streams {
		go func() {
			for {
				cost := rand.Int64N(bound * 3 / 2)
				moving.RLock()
				p, d, err := door.Begin(job{ctx: context.Background()})
				if err != nil {
					panic(err)
				}
				if !d.Allowed {
					p.Leave()
					moved.Wait()
					moving.RUnlock()
					continue
				}
				line("admitted", s, cost, 0)
				for range rand.IntN([]int{10, 120}[rand.IntN(2)]) { // up to twice the time in which the bucket fills
					moved.Wait()
				}
				short, err := rules.Settle(p, tokens, cost)
				if err != nil {
					panic(err)
				}
				line("settled", s, cost, short)
				moving.RUnlock()
			}
		}()
	}
	for {
		moving.Lock()
		if rand.IntN(64) == 0 {
			if err := lim.Flush(); err != nil {
				panic(err)
			}
			line("flushed", 0, 0, 0)
		}
		next := clock.Load() + rand.Int64N(int64(100*perTick))
		fmt.Println("moves", next, 0, 0, 0) // before it does
		clock.Store(next)
		moved.Broadcast()
		moving.Unlock()
		for range 50 { // let the streams go on
			runtime.Gosched()
		}
	}
}

// event is a line of the process.
type event struct {
	kind        string
	at          int64
	stream      int
	cost, short int64
}

// used is what requests have used of a bucket: up to the bound when they were
// admitted, and what they used beside it when that was settled.
type used struct{ at, cost int64 }

// usedOf returns what the requests of a process have used. A request that was
// not settled may have used all of its true cost before the process died, but
// what it has used beside its bound was not spent.
func usedOf(events []event) (all []used, open int) {
	running := map[int]bool{}
	for _, e := range events {
		switch e.kind {
		case "admitted":
			all = append(all, used{e.at, min(e.cost, bound)})
			running[e.stream] = true
		case "settled":
			all = append(all, used{e.at, max(0, e.cost-bound) - e.short})
			delete(running, e.stream)
		}
	}
	return all, len(running)
}

// requireLaw requires that in no stretch of time more was used than a full
// bucket, and what came back in the stretch.
func requireLaw(t *testing.T, all []used) {
	slices.SortStableFunc(all, func(a, b used) int { return cmp.Compare(a.at, b.at) })
	lacks, at := int64(0), int64(0) // of a bucket that only true costs have taken from
	for _, u := range all {
		lacks = max(0, lacks-(u.at-at)) + u.cost*int64(perTick)
		at = u.at
		if lacks > burst*int64(perTick) {
			t.Fatalf("%v more than the law allows were used by %v", lacks/int64(perTick)-burst, time.Unix(0, at).UTC())
		}
	}
}

// A process is killed again and again, while requests have spent their bounds
// and have not settled. Nothing is admitted twice: over every stretch, restarts
// included, the law holds for the true costs of all requests that were
// admitted. At Memory a new process starts with full buckets, and at Flushed
// with those of the last flush, so the law holds for what these know.
func TestSettleKill(t *testing.T) {
	t.Parallel()
	kills := 2 // at each level
	if testlength.Long {
		kills = 200
		if testing.Short() {
			kills = 40
		}
	}
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "settle.db")
			now := int64(1_800_000_000e9)
			var known []used // by the file
			var admitted, open int
			for range kills {
				events := runAndKill(t, path, level, now, 20+rand.IntN(200))
				for _, e := range events {
					now = max(now, e.at)
				}
				all, left := usedOf(events)
				open += left
				admitted += len(all)
				requireLaw(t, slices.Concat(known, all))
				switch level {
				case stint.Memory:
					all = nil
				case stint.Flushed:
					last := len(events)
					for last > 0 && events[last-1].kind != "flushed" {
						last--
					}
					all, _ = usedOf(events[:last])
				}
				known = append(known, all...)
				if level == stint.Memory {
					known = nil
				}
			}
			if testlength.Long {
				require.NotZero(t, open, "no process was killed between a spend and its settlement")
			}
			t.Logf("%d kills, with %d requests open; %d events", kills, open, admitted)
		})
	}
}

// runAndKill runs the process until it has admitted and settled so many times,
// kills it, and returns all that it has written.
func runAndKill(t *testing.T, path string, level stint.Durability, now int64, count int) (events []event) {
	cmd := subprocess.Command(t.Context(), os.Args[0], path, level.String(), fmt.Sprint(now))
	cmd.Env = append(os.Environ(), childVar+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for in := bufio.NewScanner(out); in.Scan(); {
		var e event
		_, err := fmt.Sscan(in.Text(), &e.kind, &e.at, &e.stream, &e.cost, &e.short)
		require.NoError(t, err, in.Text())
		events = append(events, e)
		if e.kind == "admitted" || e.kind == "settled" {
			if count--; count == 0 {
				require.NoError(t, cmd.Process.Kill())
			}
		}
	}
	cmd.Wait() // it was killed
	require.LessOrEqual(t, count, 0, "the process has ended by itself")
	return events
}

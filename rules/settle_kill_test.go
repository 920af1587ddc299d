package rules_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

const (
	tokens  stint.Name = 1
	burst              = 3000
	perTick            = time.Millisecond // a token comes back
	bound              = 1000             // each request spends it
	streams            = 8                // requests at the same time
)

func TestMain(m *testing.M) {
	subprocess.Children{"serve": serve}.Run()
	m.Run()
}

// must returns v, unless the process has failed.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// serve is the process that is killed. Its streams spend a bound, go on for a
// while, and settle a true cost. It writes a line when it has an answer, while
// time stands still: the kind of event, the instant, the stream and two numbers.
func serve(args []string) {
	level, _ := stint.ParseDurability(args[1])
	now, _ := strconv.ParseInt(args[2], 10, 64)
	var clock atomic.Int64
	clock.Store(now)
	l := stint.Limit{Burst: burst, Count: 1, Period: perTick, Durability: level}
	limits := must(stint.NewLimits(stint.Names{tokens: {Label: "tokens", IDs: stint.Single, Limit: l}}))
	lim := must(stint.Open(args[0], limits, &stint.Options{FlushInterval: 20 * time.Millisecond,
		Now: func() time.Time { return time.Unix(0, clock.Load()) }}))
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
				line("settled", s, cost, must(rules.Settle(p.Context(), tokens, cost)))
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

// usedOf returns what the requests of a process have used of the bucket: up to the
// bound when they were admitted, and what they used beside it when that was
// settled. A request that was not settled may have used all of its true cost before the process died, but
// what it has used beside its bound was not spent.
func usedOf(events []event) (all []modeltest.Admission, open int) {
	running := map[int]bool{}
	for _, e := range events {
		switch e.kind {
		case "admitted":
			all = append(all, modeltest.At(e.at, min(e.cost, bound)))
			running[e.stream] = true
		case "settled":
			all = append(all, modeltest.At(e.at, max(0, e.cost-bound)-e.short))
			delete(running, e.stream)
		}
	}
	return all, len(running)
}

// A process is killed again and again, while requests have spent their bounds
// and have not settled. Nothing is admitted twice: over every stretch, restarts
// included, the law holds for the true costs of all requests that were
// admitted. At Memory a new process starts with full buckets, and at Flushed
// with those of the last flush, so the law holds for what these know.
func TestSettleKill(t *testing.T) {
	t.Parallel()
	kills := testlength.Of(200, 2) // at each level
	for level := stint.Memory; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "settle.db")
			now := int64(1_800_000_000e9)
			var known []modeltest.Admission // by the file
			var admitted, open int
			for range kills {
				events := runAndKill(t, path, level, now, 20+rand.IntN(200))
				for _, e := range events {
					now = max(now, e.at)
				}
				all, left := usedOf(events)
				open += left
				admitted += len(all)
				require.NoError(t, modeltest.Excess(burst, perTick, slices.Concat(known, all)))
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
	p := subprocess.Start(t, "serve", path, level.String(), fmt.Sprint(now))
	for p.Lines.Scan() {
		var e event
		_, err := fmt.Sscan(p.Lines.Text(), &e.kind, &e.at, &e.stream, &e.cost, &e.short)
		require.NoError(t, err, p.Lines.Text())
		events = append(events, e)
		if e.kind == "admitted" || e.kind == "settled" {
			if count--; count == 0 {
				require.NoError(t, p.Cmd.Process.Kill())
			}
		}
	}
	p.Cmd.Wait() // it was killed
	require.LessOrEqual(t, count, 0, "the process has ended by itself")
	return events
}

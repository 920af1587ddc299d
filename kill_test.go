package stint

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a process that is killed leaves behind. The operating system lives on, and so does all that was written: these
// tests show the order of commits and acknowledgements, and nothing of what a power cut does.

var kills = flag.Int("kills", 15, "processes to kill per level of durability")

const (
	killBurst    = 64
	killInterval = 1000 * time.Hour // so that nothing comes back while a test runs
	killWorkers  = 4
	killSlack    = 0.01 // tokens: ten hours
)

var killNames = Names{1: {Label: "one"}, 2: {Label: "left"}, 3: {Label: "right"}, 4: {Label: "flushed"}}

func killLimits(t testing.TB, level Durability) *Limits {
	limit := Limit{Burst: killBurst, Count: 1, Period: killInterval, Durability: level}
	defaults := map[Name]Limit{1: limit, 2: limit, 3: limit, 4: limit}
	if level == Synced { // it takes part in their commits
		limit.Durability = Flushed
		defaults[4] = limit
	}
	return limitsOf(t, killNames, defaults)
}

func killLevel(level Durability, key Key) Durability {
	if level == Synced && key.Name == 4 {
		return Flushed
	}
	return level
}

// killAll is what a SpendAll takes cost tokens of, each.
func killAll(level Durability, id string, cost int64) []Request {
	reqs := []Request{{Key: Name(2).Key(id), Cost: cost}, {Key: Name(3).Key(id), Cost: cost}}
	if level == Synced {
		reqs = append(reqs, Request{Key: Name(4).Key(id), Cost: cost})
	}
	return reqs
}

const killEnv = "STINT_TEST_KILLED_PROCESS"

// TestKilledProcess is the process that is killed. It says what it is about to do, and what came of it, each in a write
// of its own.
func TestKilledProcess(t *testing.T) {
	args := strings.SplitN(os.Getenv(killEnv), " ", 4)
	if len(args) < 4 {
		t.Skip("it is run by TestProcessKill")
	}
	level, err := ParseDurability(args[0])
	require.NoError(t, err)
	var era int
	var seed uint64
	fmt.Sscan(args[1], &era)
	fmt.Sscan(args[2], &seed)
	l, err := Open(args[3], killLimits(t, level), &Options{FlushInterval: 2 * time.Millisecond, CommitTimeout: time.Hour})
	if err != nil {
		fmt.Printf("e 0 open: %v\n", err)
		return
	}
	for w := range killWorkers {
		go killWork(l, level, era, w, rand.New(rand.NewPCG(seed, uint64(w))))
	}
	select {}
}

func killWork(l *Limiter, level Durability, era, w int, rnd *rand.Rand) {
	say := func(format string, args ...any) { os.Stdout.WriteString(fmt.Sprintf(format, args...)) }
	mine := make(map[Key]int64) // spent by this worker, and not given back
	act := func(op string, key Key, cost int64) (allowed bool) {
		say("t %d %s %d %s\n", w, op, cost, key)
		var d Decision
		var err error
		switch op {
		case "spend":
			d, err = l.Spend(key, cost)
		case "refund":
			_, err = l.Refund(key, cost)
		case "spendall":
			d, err = l.SpendAll(killAll(level, key.ID, cost)...)
		case "refundall":
			_, err = l.RefundAll(killAll(level, key.ID, cost)...)
		case "reset":
			err = l.Reset(key)
		case "hold":
			err = l.Hold(key, time.Unix(cost*3600, 0))
		case "flush":
			err = l.Flush()
		}
		if err != nil {
			say("e %d %s %v: %v\n", w, op, key, err)
			return false
		}
		say("a %d %t\n", w, d.Allowed)
		return d.Allowed
	}
	own := Name(1).Key(fmt.Sprintf("own-%d-%d", era, w))
	held := Name(1).Key(fmt.Sprintf("held-%d-%d", era, w))
	for {
		key, spend, refund := own, "spend", "refund"
		switch n := rnd.IntN(100); {
		case n < 3:
			act("hold", held, time.Now().Unix()/3600+int64(1000+rnd.IntN(1000)))
			continue
		case n < 4:
			act("reset", held, 0)
			continue
		case n < 6:
			act("reset", own, 0)
			delete(mine, own)
			continue
		case n < 10:
			if w == 0 {
				act("flush", Key{}, 0)
			}
			continue
		case n < 40:
			key = Name(1).Key(fmt.Sprintf("shared-%d-%d", era, rnd.IntN(3)))
		case n < 65:
			key, spend, refund = Name(2).Key(fmt.Sprintf("all-%d", era)), "spendall", "refundall"
		}
		cost := 1 + rnd.Int64N(3)
		if rnd.Int64N(24) >= mine[key] {
			if act(spend, key, cost) {
				mine[key] += cost
			}
		} else {
			cost = min(cost, mine[key])
			act(refund, key, cost)
			mine[key] -= cost
		}
	}
}

// killBucket is what is known of a bucket from what the process said: tokens spent, at least and at most.
type killBucket struct {
	base   float64 // when the process began
	spent  int64   // acknowledged
	spends int64   // spent, and perhaps spent
	back   int64   // given back, acknowledged
	backs  int64   // given back, and perhaps given back
	reset  bool    // perhaps it has been reset

	since, flushing [2]float64 // the least and the most since the last flush, and since the one under way, began
}

func (b *killBucket) least() float64 {
	if b.reset {
		return 0
	}
	return b.base + float64(b.spent-b.backs)
}

func (b *killBucket) most() float64 { return b.base + float64(b.spends-b.back) }

func (b *killBucket) note() {
	for _, span := range []*[2]float64{&b.since, &b.flushing} {
		span[0], span[1] = min(span[0], b.least()), max(span[1], b.most())
	}
}

type killOp struct {
	op   string
	cost int64
	key  Key
}

// killLedger is what the processes of one level said, and left.
type killLedger struct {
	level   Durability
	buckets map[Key]*killBucket
	holds   map[Key][]int64 // the hour until which the key is held: what it may be
	ops     [killWorkers]killOp

	killed, acknowledged, held      int
	tokens, known                   float64 // of the buckets that the killed process had spent of
	forgotten, unanswered, withheld killSum
}

// killSum is a sum over buckets, and the largest part of it.
type killSum struct{ all, most float64 }

func (s *killSum) add(tokens float64) {
	s.all += max(0, tokens)
	s.most = max(s.most, tokens)
}

func (s killSum) String() string {
	return fmt.Sprintf("%.1f (at most %.2f of a bucket)", s.all, s.most)
}

func (g *killLedger) bucket(key Key) *killBucket {
	b := g.buckets[key]
	if b == nil {
		b = &killBucket{}
		g.buckets[key] = b
	}
	return b
}

// of returns the buckets that an op is about.
func (g *killLedger) of(op killOp) (bs []*killBucket) {
	if !strings.HasSuffix(op.op, "all") {
		return []*killBucket{g.bucket(op.key)}
	}
	for _, r := range killAll(g.level, op.key.ID, op.cost) {
		bs = append(bs, g.bucket(r.Key))
	}
	return bs
}

func (g *killLedger) isHold(key Key) bool { return strings.HasPrefix(key.ID, "held") }

// hear takes note of a line.
func (g *killLedger) hear(t *testing.T, line string) {
	var kind byte
	var w int
	var rest, key string
	if n, _ := fmt.Sscanf(line, "%c %d %s", &kind, &w, &rest); n < 3 || kind != 't' && kind != 'a' {
		require.Fail(t, "the process said: "+line)
	}
	if kind == 't' {
		op := killOp{op: rest}
		_, err := fmt.Sscanf(line, "t %d %s %d %s", &w, &rest, &op.cost, &key)
		require.NoError(t, err, line)
		name, id, _ := strings.Cut(key, ":")
		var number uint16
		fmt.Sscan(name, &number)
		op.key = Name(number).Key(id)
		g.ops[w] = op
		g.tried(op)
		return
	}
	g.acknowledged++
	g.answered(g.ops[w], rest == "true")
	g.ops[w] = killOp{}
}

func (g *killLedger) tried(op killOp) {
	switch {
	case op.op == "flush":
		for _, b := range g.buckets {
			b.flushing = [2]float64{b.least(), b.most()}
		}
		return
	case g.isHold(op.key):
		if g.holds[op.key] == nil {
			g.holds[op.key] = []int64{0}
		}
		g.holds[op.key] = append(g.holds[op.key], op.cost)
		return
	}
	for _, b := range g.of(op) {
		switch op.op {
		case "spend", "spendall":
			b.spends += op.cost
		case "refund", "refundall":
			b.backs += op.cost
		case "reset":
			b.reset = true
		}
		b.note()
	}
}

func (g *killLedger) answered(op killOp, allowed bool) {
	switch {
	case op.op == "flush":
		for _, b := range g.buckets {
			b.since = b.flushing
		}
		return
	case g.isHold(op.key):
		g.holds[op.key] = []int64{op.cost}
		return
	}
	for _, b := range g.of(op) {
		switch op.op {
		case "spend", "spendall":
			if allowed {
				b.spent += op.cost
			} else {
				b.spends -= op.cost
			}
		case "refund", "refundall":
			b.back += op.cost
		case "reset":
			*b = killBucket{since: b.since, flushing: b.flushing}
		}
		b.note()
	}
}

// recovered compares what the file has with what it may have.
func (g *killLedger) recovered(t *testing.T, path string) {
	l, err := Open(path, killLimits(t, g.level), nil)
	require.NoError(t, err, "after kill %d", g.killed)
	defer func() { require.NoError(t, l.Close()) }()
	have := make(map[Key]float64)
	for key, b := range g.buckets {
		d, err := l.Check(key, 0)
		require.NoError(t, err)
		tokens := float64(d.ResetAfter) / float64(killInterval)
		have[key] = tokens
		least, most := b.least(), b.most()
		require.LessOrEqual(t, b.base+float64(b.spent-b.backs), killBurst+killSlack, "%v: more was admitted than there is", key)

		level := killLevel(g.level, key)
		floor, ceiling := least, most
		switch level {
		case Memory, Flushed:
			floor, ceiling = b.since[0], b.since[1]
		case Leased:
			ceiling += killBurst / 8
		}
		require.GreaterOrEqual(t, tokens, floor-killSlack, "kill %d: %v: %v tokens are spent, and %v were acknowledged: more may now be admitted", g.killed, key, tokens, floor)
		require.LessOrEqual(t, tokens, ceiling+killSlack, "kill %d: %v: %v tokens are spent, and at most %v should be: some are withheld", g.killed, key, tokens, ceiling)

		if b.spends+b.backs > 0 {
			g.tokens += tokens
			g.known += least
			g.forgotten.add(least - tokens)
			g.unanswered.add(min(tokens, most) - least)
			g.withheld.add(tokens - most)
		}
		*b = killBucket{base: tokens, since: [2]float64{tokens, tokens}, flushing: [2]float64{tokens, tokens}}
	}
	for key, tokens := range have {
		if key.Name == 2 && g.level >= Leased {
			for _, r := range killAll(g.level, key.ID, 0) {
				require.InDelta(t, tokens, have[r.Key], killSlack, "kill %d: of a SpendAll on %v a part is there", g.killed, key)
			}
		}
	}
	for key, may := range g.holds {
		d, err := l.Check(key, 0)
		require.NoError(t, err)
		hour := int64(0)
		if d.RetryAfter > 0 {
			hour = int64(math.Round(float64(time.Now().Add(d.RetryAfter).Unix()) / 3600))
			g.held++
		}
		require.Contains(t, may, hour, "kill %d: %v", g.killed, key)
		g.holds[key] = []int64{hour}
	}
	g.ops = [killWorkers]killOp{}
}

// A process is killed again and again, and each time the next goes on with the file that it left. What is on file is
// then, for each level of durability, what DESIGN's table promises.
func TestProcessKill(t *testing.T) {
	for _, level := range []Durability{Memory, Flushed, Leased, Synced} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			rnd := rand.New(rand.NewPCG(seed, 0))
			path := filepath.Join(t.TempDir(), "killed.db")
			g := &killLedger{level: level, buckets: make(map[Key]*killBucket), holds: make(map[Key][]int64)}
			for g.killed < *kills {
				killProcess(t, g, path, rnd)
				there := path
				if rnd.IntN(3) > 0 { // the next process finds the file as this one left it
					there = path + ".copy"
					if err := copyFile(there, path); errors.Is(err, fs.ErrNotExist) {
						there = path
					} else {
						require.NoError(t, err)
					}
				}
				g.recovered(t, there)
			}
			t.Logf("%v: %d processes killed, %d calls acknowledged; tokens acknowledged as spent: %.1f; found spent: %.1f; "+
				"forgotten: %v; asked for and not acknowledged: %v; withheld beside those: %v; holds found: %d",
				level, g.killed, g.acknowledged, g.known, g.tokens, g.forgotten, g.unanswered, g.withheld, g.held)
		})
	}
}

// killProcess starts a process, listens to it for a while, kills it, and hears what else it had said.
func killProcess(t *testing.T, g *killLedger, path string, rnd *rand.Rand) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%v %d %d %s", killEnv, g.level, g.killed/5, rnd.Uint64(), path))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	hear := func() bool {
		line, err := lines.ReadString('\n')
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			return false // of a line that is not whole nothing is known
		}
		g.hear(t, strings.TrimSuffix(line, "\n"))
		return true
	}
	for range rnd.IntN(1 << rnd.IntN(10)) {
		if !hear() {
			break
		}
	}
	for range rnd.IntN(1 << rnd.IntN(12)) {
		runtime.Gosched()
	}
	require.NoError(t, cmd.Process.Kill())
	for hear() {
	}
	require.Error(t, cmd.Wait())
	require.Empty(t, stderr.String())
	g.killed++
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

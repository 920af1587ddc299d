package worlds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

// TestCalendarKill takes a process with quotas at each level through histories
// of TestCalendarWorld, and kills it again and again: at the edges of periods,
// while it flushes, and while it spends. The next process goes on with its file.
func TestCalendarKill(t *testing.T) {
	t.Parallel()
	worlds := 5
	if !testlength.Long {
		worlds = 2
	}
	kills, decisions := 0, 0
	for range worlds {
		w := newCalendarWorld(t, rand.Uint64())
		path := filepath.Join(t.TempDir(), "killed.db")
		w.start = func() calendarSystem { return startCalendar(w, path) }
		w.l = w.start()
		for w.kills < testlength.Of(40, 1) {
			w.step()
		}
		w.close()
		kills, decisions = kills+w.kills, decisions+w.decisions
	}
	t.Logf("%d kills, %d decisions, 0 differences", kills, decisions)
}

// calendarCall is a call of the calendarSystem in another process. Limits have
// zones, and so cross as text.
type calendarCall struct {
	Op     string
	Now    int64
	Reqs   []stint.Request
	Limits map[stint.Name]string
}

type calendarReply struct {
	Decisions []stint.Decision // the first one is that of the call
	Limits    []string         // of the Decisions
	Err       string
}

// calendarProcess is a calendarSystem in a process that is killed.
type calendarProcess struct {
	*subprocess.Child
	w *calendarWorld
}

func startCalendar(w *calendarWorld, path string) *calendarProcess {
	flushes := []time.Duration{2 * time.Millisecond, time.Hour}[w.rng.IntN(2)]
	p := &calendarProcess{subprocess.Start(w.t, "calendar", path, flushes.String(), strconv.Itoa(w.resident)), w}
	w.must(p.SetLimits(w.configured))
	return p
}

func (p *calendarProcess) send(op string, reqs []stint.Request) {
	c := calendarCall{Op: op, Now: p.w.now().UnixNano(), Reqs: reqs}
	if op == "limits" || op == "override" {
		c.Limits = make(map[stint.Name]string)
		for name, l := range p.w.limits {
			c.Limits[name] = l.String()
		}
	}
	require.NoError(p.w.t, json.NewEncoder(p.Stdin).Encode(c))
}

// receive returns the reply to a call. ok is false if the process was killed
// before.
func (p *calendarProcess) receive() (ds []stint.Decision, err error, ok bool) {
	if !p.Lines.Scan() {
		return nil, nil, false
	}
	var r calendarReply
	p.w.must(json.Unmarshal(p.Lines.Bytes(), &r))
	for i, text := range r.Limits {
		d := &r.Decisions[i]
		d.Limit, err = levelLimit(d.Key.Name, text)
		p.w.must(err)
	}
	if r.Err != "" {
		return r.Decisions, errors.New(r.Err), true
	}
	return r.Decisions, nil, true
}

// levelLimit reads the limit of a Name, which stands for its level.
func levelLimit(name stint.Name, text string) (stint.Limit, error) {
	l, err := stint.ParseLimit(text)
	l.Durability = stint.Durability(name)
	return l, err
}

func (p *calendarProcess) call(op string, reqs ...stint.Request) ([]stint.Decision, error) {
	p.send(op, reqs)
	ds, err, ok := p.receive()
	require.True(p.w.t, ok, "the process has ended")
	return ds, err
}

func (p *calendarProcess) one(op string, reqs ...stint.Request) (stint.Decision, error) {
	ds, err := p.call(op, reqs...)
	if err != nil {
		return stint.Decision{}, err
	}
	return ds[0], nil
}

func (p *calendarProcess) Spend(key stint.Key, cost int64) (stint.Decision, error) {
	return p.one("spend", stint.Request{Key: key, Cost: cost})
}

func (p *calendarProcess) Check(key stint.Key, cost int64) (stint.Decision, error) {
	return p.one("check", stint.Request{Key: key, Cost: cost})
}

func (p *calendarProcess) Refund(reqs ...stint.Request) (stint.Decision, error) {
	return p.one("refund", reqs...)
}

func (p *calendarProcess) Do(_ context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	all, err := p.call("together", reqs...)
	if err != nil {
		return stint.Decision{}, err
	}
	copy(ds, all[1:])
	return all[0], nil
}

func (p *calendarProcess) Reset(keys ...stint.Key) error {
	return errorOf(p.call("reset", stint.Request{Key: keys[0]}))
}

// The limits are the world's.
func (p *calendarProcess) SetLimits(*stint.Limits) error { return errorOf(p.call("limits")) }
func (p *calendarProcess) override(map[stint.Name]stint.Limit) error {
	return errorOf(p.call("override"))
}

func (p *calendarProcess) Flush() error { return errorOf(p.call("flush")) }

func (p *calendarProcess) Close() error {
	_, err := p.call("close")
	p.Finish(p.w.t)
	return err
}

func (p *calendarProcess) kill(key stint.Key, cost int64) (answer *stint.Decision, begun bool) {
	begun = p.w.rng.IntN(4) > 0
	if begun {
		p.send("spend", []stint.Request{{Key: key, Cost: cost}})
		for range rand.IntN(1 << rand.IntN(14)) {
			runtime.Gosched()
		}
	}
	require.NoError(p.w.t, p.Cmd.Process.Kill())
	if ds, err, ok := p.receive(); ok {
		p.w.must(err)
		answer = &ds[0]
	}
	p.Cmd.Wait() // an error: it was killed
	return answer, begun
}

// killedCalendar is the process that is killed.
func killedCalendar(args []string) {
	clock := modeltest.NewClock()
	flushes, _ := time.ParseDuration(args[1])
	resident, _ := strconv.Atoi(args[2])
	opts := &stint.Options{FlushInterval: flushes, Now: clock.Now, MaxResident: resident}
	var l *stint.Limiter
	replies := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var c calendarCall
		err := json.Unmarshal(lines.Bytes(), &c)
		clock.Set(c.Now)
		var ds []stint.Decision
		if err == nil && c.Op == "limits" {
			l, err = limitCalendar(l, args[0], c.Limits, opts)
		} else if err == nil {
			ds, err = doCalendar(l, c)
		}
		var r calendarReply
		if err != nil {
			r.Err = err.Error()
		} else {
			for _, d := range ds {
				r.Decisions, r.Limits = append(r.Decisions, d), append(r.Limits, d.Limit.String())
			}
		}
		if err := replies.Encode(r); err != nil {
			panic(err)
		}
	}
}

// calendarLimits reads the limit of each Name.
func calendarLimits(texts map[stint.Name]string) map[stint.Name]stint.Limit {
	limits := make(map[stint.Name]stint.Limit)
	for name, text := range texts {
		var err error
		if limits[name], err = levelLimit(name, text); err != nil {
			panic(err)
		}
	}
	return limits
}

// limitCalendar puts limits in force, and opens the file first if l is nil.
func limitCalendar(l *stint.Limiter, path string, texts map[stint.Name]string, opts *stint.Options) (*stint.Limiter, error) {
	ls, err := stint.NewLimits(levelNames.WithLimits(calendarLimits(texts)))
	if err != nil {
		return l, err
	}
	if l != nil {
		return l, l.SetLimits(ls)
	}
	return stint.Open(path, ls, opts)
}

func doCalendar(l *stint.Limiter, c calendarCall) ([]stint.Decision, error) {
	one := func(d stint.Decision, err error) ([]stint.Decision, error) { return []stint.Decision{d}, err }
	switch c.Op {
	case "spend":
		return one(l.Spend(c.Reqs[0].Key, c.Reqs[0].Cost))
	case "check":
		return one(l.Check(c.Reqs[0].Key, c.Reqs[0].Cost))
	case "refund":
		return one(l.Refund(c.Reqs...))
	case "together":
		ds := make([]stint.Decision, 1+len(c.Reqs))
		var err error
		ds[0], err = l.Do(context.Background(), c.Reqs, ds[1:])
		return ds, err
	case "reset":
		return nil, l.Reset(c.Reqs[0].Key)
	case "override":
		return nil, overrideCalendar(l, calendarLimits(c.Limits))
	case "flush":
		return nil, l.Flush()
	case "close":
		return nil, l.Close()
	}
	return nil, fmt.Errorf("no such call: %s", c.Op)
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
)

const hostVar = "STINT_BENCH_HOST"

func TestMain(m *testing.M) {
	if told := os.Getenv(hostVar); told != "" {
		hostOwner(told)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The limit of the comparison: no request is denied, and no bucket becomes
// full.
var hostLimits = func() map[stint.Durability]*stint.Limits {
	all := make(map[stint.Durability]*stint.Limits)
	for _, level := range []stint.Durability{stint.Flushed, stint.Synced} {
		limit := stint.Limit{Burst: 1 << 40, Count: 1, Period: time.Millisecond, Durability: level}
		all[level], _ = stint.NewLimits(stint.Names{1: {Label: "Bench", Limit: limit}})
	}
	return all
}()

// hostOrder is a round that the owner's process runs itself.
type hostOrder struct {
	Callers int
	Length  time.Duration
}

// hostOwner owns the file, and runs the rounds that it reads from its input.
func hostOwner(told string) {
	var o struct {
		Path  string
		Level stint.Durability
	}
	must(json.Unmarshal([]byte(told), &o))
	l, err := hostlimit.Open(o.Path, hostLimits[o.Level], nil)
	if err != nil || l.Role() != hostlimit.RoleOwner {
		panic(fmt.Sprint(l.Role(), err))
	}
	go hostEcho(o.Path + ".echo")
	fmt.Println("ready")
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var order hostOrder
		if in.Decode(&order) != nil {
			break
		}
		out.Encode(perSecond(order.Callers, order.Length, hostSpend(l)))
	}
	l.Close()
}

// hostEcho sends back what it reads: the least that two processes do over a
// socket.
func hostEcho(path string) {
	listener, err := net.Listen("unix", path)
	must(err)
	for {
		c, err := listener.Accept()
		must(err)
		go io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	}
}

func hostSpend(l *hostlimit.Limiter) func(caller, n int) {
	return func(caller, n int) {
		d, err := l.Spend(stint.Name(1).Key(hostID(caller, n)), 1)
		if err != nil || !d.Allowed {
			panic(fmt.Sprint(d, err))
		}
	}
}

// hostID draws one of a thousand ids.
func hostID(caller, n int) string { return hostIDs[(caller*7919+n)%len(hostIDs)] }

var hostIDs = func() (ids [1000]string) {
	for i := range ids {
		ids[i] = fmt.Sprintf("%024x", uint64(i)*0x9E3779B97F4A7C15)
	}
	return ids
}()

// perSecond returns the calls per second of all callers together.
func perSecond(callers int, length time.Duration, call func(caller, n int)) float64 {
	var calls atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	begun := time.Now()
	for c := range callers {
		all.Go(func() {
			n := 0
			for ; !stop.Load(); n++ {
				call(c, n)
			}
			calls.Add(int64(n))
		})
	}
	<-time.After(length)
	stop.Store(true)
	all.Wait()
	return float64(calls.Load()) / time.Since(begun).Seconds()
}

// TestHost compares guests in a process of their own with Redis over a Unix
// socket, and with callers in the owner. They take turns. It reports the median
// and the best turn of each, because other work on the machine can only slow a
// turn down. Without -v there are too few turns to report.
//
//	go test -run TestHost -v .
func TestHost(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures")
	}
	dir, err := os.MkdirTemp("", "host")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	redis, err := redisEverysec.Open(Config{Dir: dir, Burst: 1 << 40, Interval: time.Millisecond, Callers: 64})
	if err != nil {
		t.Skip(err)
	}
	defer redis.Close()
	type contestant struct {
		name string
		run  func(callers int, length time.Duration) float64
	}
	all := []contestant{{"redis", func(callers int, length time.Duration) float64 {
		return perSecond(callers, length, func(caller, n int) { redis.Allow(hostID(caller, n)) })
	}}}
	alone := []contestant{{"redis PING", func(callers int, length time.Duration) float64 {
		return perSecond(callers, length, func(int, int) { must(redis.(*redisDecider).client.Ping(t.Context()).Err()) })
	}}} // with one caller
	for _, level := range []stint.Durability{stint.Flushed, stint.Synced} {
		path := filepath.Join(dir, level.String()+".db")
		told, _ := json.Marshal(map[string]any{"Path": path, "Level": level})
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), hostVar+"="+string(told))
		cmd.Stderr = os.Stderr
		stdin, _ := cmd.StdinPipe()
		stdout, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer stdin.Close()
		if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		if level == stint.Flushed {
			alone = append(alone, contestant{"a byte", func(callers int, length time.Duration) float64 {
				return perSecond(callers, length, echo(t, path+".echo"))
			}})
		}
		guest, err := hostlimit.Open(path, hostLimits[level], nil)
		if err != nil || guest.Role() != hostlimit.RoleGuest {
			t.Fatal(err)
		}
		defer guest.Close()
		orders, replies := json.NewEncoder(stdin), json.NewDecoder(stdout)
		all = append(all, contestant{"guest " + level.String(), func(callers int, length time.Duration) float64 {
			return perSecond(callers, length, hostSpend(guest))
		}}, contestant{"owner " + level.String(), func(callers int, length time.Duration) (figure float64) {
			orders.Encode(hostOrder{callers, length})
			if err := replies.Decode(&figure); err != nil {
				t.Fatal(err)
			}
			return figure
		}})
	}
	figures := make(map[string][]float64)
	name := func(c contestant, callers int) string { return fmt.Sprintf("%-14s %2d callers", c.name, callers) }
	rounds := 3
	if testing.Verbose() {
		rounds = 40
	}
	for round := range rounds {
		for _, callers := range []int{1, 64} {
			now := all
			if callers == 1 {
				now = slices.Concat(all, alone)
			}
			for _, c := range now {
				runtime.GC()
				figure := c.run(callers, 50*time.Millisecond)
				if round > 0 { // the first is to warm up
					figures[name(c, callers)] = append(figures[name(c, callers)], figure)
				}
			}
		}
	}
	for _, callers := range []int{1, 64} {
		for _, share := range []struct {
			name string
			of   func(sorted []float64) float64
		}{
			{"median", func(sorted []float64) float64 { return sorted[len(sorted)/2] }},
			{"best", func(sorted []float64) float64 { return sorted[len(sorted)-1] }},
		} {
			of := func(c contestant) float64 {
				slices.Sort(figures[name(c, callers)])
				return share.of(figures[name(c, callers)])
			}
			for _, c := range slices.Concat(all, alone) {
				if figures[name(c, callers)] != nil {
					t.Logf("%s: %8.0f a second (%s)", name(c, callers), of(c), share.name)
				}
			}
			t.Logf("guest flushed ÷ redis: %.2f; guest synced ÷ owner synced: %.2f (%s)", of(all[1])/of(all[0]),
				of(all[3])/of(all[4]), share.name)
		}
	}
}

// echo returns a call that sends a byte and waits for it.
func echo(t *testing.T, path string) func(caller, n int) {
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	b := make([]byte, 1)
	return func(int, int) {
		_, err := c.Write(b)
		if err == nil {
			_, err = io.ReadFull(c, b)
		}
		must(err)
	}
}

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/resp/resptest"
	"github.com/stint-go/stint/internal/testlength"
)

// A server ends while 8 clients throttle. No bucket has spent more afterwards than
// was asked for. After a kill, flushed has what was answered before the last flush
// began, and leased and synced have every reply that a client got. After an
// orderly end, memory has them, too.
func TestServeKilled(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"memory", "flushed", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			rounds := testlength.Of(25, 1)
			for round := range rounds {
				testServeEnds(t, level, round, true)
			}
			testServeEnds(t, level, rounds, false)
		})
	}
}

func testServeEnds(t *testing.T, level string, round int, kill bool) {
	const clients, burst = 8, 1_000_000
	db := serveDB(t)
	s := startServe(t, 1, nil, "--db", db, "--durability", level)
	var answered, asked [clients]atomic.Int64
	var wg sync.WaitGroup
	var slow atomic.Bool // a client pauses after each batch
	enough := make(chan struct{}, clients)
	for i := range clients {
		c := resptest.Dial(t, s.at[0])
		wg.Go(func() {
			batch := 1 + i%4 // of different keys, so that they are decided together
			var text strings.Builder
			for j := range batch {
				fmt.Fprintf(&text, "CL.THROTTLE user:%d:%d %d 100 86400\n", i, j, burst-1)
			}
			commands := resptest.Encoded(text.String())
			for {
				asked[i].Add(1)
				if _, err := io.WriteString(c, commands); err != nil {
					return
				}
				for range batch {
					for range 6 {
						if _, err := c.In.ReadString('\n'); err != nil {
							return
						}
					}
				}
				if answered[i].Add(1) == int64(20*(round%5)+1) {
					enough <- struct{}{}
				}
				if slow.Load() {
					<-time.After(10 * time.Millisecond)
				}
			}
		})
	}
	for range clients {
		<-enough
	}
	var saved [clients]int64 // at least
	if kill && level == "flushed" {
		for i := range clients {
			saved[i] = answered[i].Load()
		}
		slow.Store(true)  // a flush needs little to save
		twoFlushes(t, db) // the second one began after these replies
		slow.Store(false)
		for i := range clients { // the kill finds them at full speed
			was := answered[i].Load()
			eventually(t, func() bool { return answered[i].Load() > was })
		}
	}
	if kill {
		s.kill()
	} else {
		require.Equal(t, 0, s.end(t))
	}
	wg.Wait()
	if !kill || level == "leased" || level == "synced" {
		for i := range clients {
			saved[i] = answered[i].Load()
		}
	}

	s = startServe(t, 1, nil, "--db", db, "--durability", level)
	c := resptest.Dial(t, s.at[0])
	for i := range clients {
		for j := range 1 + i%4 {
			var zero, of, left, retry, reset int64
			reply := c.Do(t, fmt.Sprintf("CL.THROTTLE user:%d:%d %d 100 86400 0", i, j, burst-1))
			_, err := fmt.Sscanf(reply, "[%d %d %d %d %d]", &zero, &of, &left, &retry, &reset)
			require.NoError(t, err, reply)
			spent := burst - left
			require.LessOrEqual(t, spent, asked[i].Load(), "%s: client %d", level, i)
			require.GreaterOrEqual(t, spent, saved[i], "%s: client %d", level, i)
		}
	}
	require.Equal(t, 0, s.end(t))
}

// twoFlushes returns after two flushes. Traffic runs, so each has something to
// save.
func twoFlushes(t *testing.T, db string) {
	owner, err := hostlimit.Dial(db, nil, &hostlimit.Options{TakeoverTimeout: time.Minute})
	require.NoError(t, err)
	defer owner.Close()
	flushes := func() int64 {
		st := owner.Stats()
		require.NoError(t, st.Err)
		return st.Flush.Saves
	}
	before := flushes()
	eventually(t, func() bool { return flushes() >= before+2 })
}

// A server is killed, or ends, while clients throttle and another server waits.
// They connect again, and go on with every token that a reply spent, and no
// others than they asked for.
func TestServeTakesOverUnderLoad(t *testing.T) {
	t.Parallel()
	const clients, burst = 4, 800_000 // which refills in 91 years
	for name, kill := range map[string]bool{"killed": true, "ended": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := serveDB(t)
			args := []string{"--db", db, "--durability", "synced"}
			first := startServe(t, 1, nil, args...)
			second := startServe(t, 0, nil, args...)
			second.lineWith(t, "waiting to take over")
			var answered, asked [clients]atomic.Int64
			var wg sync.WaitGroup
			var end atomic.Bool
			defer end.Store(true)
			for i := range clients {
				command := resptest.Encoded(fmt.Sprintf("CL.THROTTLE user:%d %d 1 3600", i, burst-1))
				wg.Go(func() {
					for !end.Load() {
						conn, err := net.Dial("unix", first.at[0])
						if err != nil {
							<-time.After(time.Millisecond) // the servers need the processors
							continue
						}
						for in := bufio.NewReader(conn); err == nil && !end.Load(); {
							asked[i].Add(1)
							if _, err = io.WriteString(conn, command); err != nil {
								break
							}
							for range 6 {
								if _, err = in.ReadString('\n'); err != nil {
									break
								}
							}
							if err == nil {
								answered[i].Add(1)
							}
						}
						_ = conn.Close()
					}
				})
			}
			more := func(n int64) { // n answers for each client
				for i := range clients {
					want := answered[i].Load() + n
					eventually(t, func() bool { return answered[i].Load() >= want })
				}
			}
			more(20)
			if kill {
				first.kill()
			} else {
				require.Equal(t, 0, first.end(t))
			}
			second.lineWith(t, "serving")
			more(20)
			end.Store(true)
			wg.Wait()
			c := resptest.Dial(t, first.at[0])
			for i := range clients {
				var zero, of, left int64
				reply := c.Do(t, fmt.Sprintf("CL.THROTTLE user:%d %d 1 3600 0", i, burst-1))
				_, err := fmt.Sscanf(reply, "[%d %d %d ", &zero, &of, &left)
				require.NoError(t, err, reply)
				require.LessOrEqual(t, burst-left, asked[i].Load())
				require.GreaterOrEqual(t, burst-left, answered[i].Load())
			}
		})
	}
}

// A command that waits in the queue of a server that is killed is not run, and the
// error says so.
func TestServeKilledBeforeRun(t *testing.T) {
	db := serveDB(t)
	limits := write(t, "limits.yml", serveLimits)
	s := startServe(t, 1, nil, "--db", db, "--limits", limits)
	c := resptest.Dial(t, s.at[0])
	require.Equal(t, "1", c.Do(t, "STINT.WAIT Slow a 1 0"))
	run := process(t, "run", "--wait", "--db", db, "--limits", limits, "--name", "Slow", "a", "--", "echo", "it ran")
	var stdout, stderr bytes.Buffer
	run.Stdout, run.Stderr = &stdout, &stderr
	require.NoError(t, run.Start())
	t.Cleanup(func() { _ = run.Process.Kill() })
	// The queue has space for one token.
	eventually(t, func() bool { return strings.HasPrefix(c.Do(t, "STINT.WAIT Slow a 1 1"), "-QUEUEFULL ") })
	s.kill()
	require.Error(t, run.Wait())
	assert.Equal(t, console.StatusFailed, run.ProcessState.ExitCode())
	assert.Empty(t, stdout.String())
	assert.Contains(t, stderr.String(), "the command was not run, but its tokens may be spent: try again")
}

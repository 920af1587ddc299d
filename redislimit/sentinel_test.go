package redislimit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// startSentinel starts a sentinel that watches the primary at a port.
func startSentinel(t *testing.T, primary string) *server {
	t.Helper()
	port, dir := freePort(t), t.TempDir()
	conf := filepath.Join(dir, "sentinel.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `port %s
bind 127.0.0.1
dir %s
sentinel monitor primary 127.0.0.1 %s 2
sentinel down-after-milliseconds primary 1000
sentinel failover-timeout primary 10000
`, port, dir, primary), 0o600))
	cmd := exec.Command(serverProgram, conf, "--sentinel")
	require.NoError(t, cmd.Start())
	s := &server{tb: t, cmd: cmd, url: "redis://127.0.0.1:" + port}
	t.Cleanup(s.kill)
	eventually(t, "the sentinel listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return s
}

// Sentinels replace a primary that dies by a replica that lags behind it. The
// Limiter follows. No acknowledged token of durability synced is lost. Tokens of
// flushed are lost, which shows that the replica lags.
func TestSentinel(t *testing.T) {
	t.Parallel()
	if !testlength.Long {
		t.Skip("waits for elections; with -tags long only")
	}
	port := freePort(t)
	primary := startServer(t, "--port", port, "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
	p := newProxy(t, primary)
	_, stream, err := net.SplitHostPort(strings.TrimPrefix(p.url, "redis://"))
	require.NoError(t, err)
	replica := startServer(t, "--port", freePort(t), "--bind", "127.0.0.1", "--replicaof", "127.0.0.1 "+stream,
		"--replica-announce-ip", "127.0.0.1") // the stream comes through a Unix socket
	eventually(t, "the replica is ready", func() bool {
		return strings.Contains(fmt.Sprint(replica.cli("INFO", "replication")), "master_link_status:up")
	})
	var addrs []string
	var sentinels []*server
	for range 3 {
		s := startSentinel(t, port)
		sentinels = append(sentinels, s)
		addrs = append(addrs, strings.TrimPrefix(s.url, "redis://"))
	}
	eventually(t, "the sentinels know each other and the replica", func() bool {
		for _, s := range sentinels {
			state, _ := s.cli("SENTINEL", "MASTER", "primary").(map[string]any)
			if state["num-other-sentinels"] != "2" || state["num-slaves"] != "1" {
				return false
			}
		}
		return true
	})

	const burst = 1_000_000
	limit := stint.Limit{Burst: burst, Count: 2, Period: time.Hour}
	synced := limit
	synced.Durability = stint.Synced
	limits, err := stint.NewLimits(testNames.WithLimits(map[stint.Name]stint.Limit{
		perID: synced, other: limit, everyone: limit, off: stint.Unlimited, shut: stint.Blocked,
	}))
	require.NoError(t, err)
	l := openAt(t, "redis://"+addrs[0]+"?addr="+addrs[1]+"&addr="+addrs[2]+"&master_set=primary", limits,
		Options{Timeout: 200 * time.Millisecond})
	require.NoError(t, l.Health())

	var acknowledged, unsure, flushed, unknown atomic.Int64
	var ending atomic.Bool
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for !ending.Load() {
				switch d, err := l.Spend(perID.Key("a"), 1); {
				case err == nil && d.Allowed:
					acknowledged.Add(1)
				case errors.Is(err, stint.ErrNotDurable), errors.Is(err, ErrNoAnswer):
					unsure.Add(1)
				case !errors.Is(err, ErrAway) && !errors.Is(err, ErrBusy):
					t.Error(d, err)
				}
				switch d, err := l.Spend(other.Key("a"), 1); {
				case err == nil && d.Allowed:
					flushed.Add(1)
				case errors.Is(err, ErrNoAnswer):
					unknown.Add(1)
				case !errors.Is(err, ErrAway) && !errors.Is(err, ErrBusy):
					t.Error(d, err)
				}
			}
		})
	}
	grows := func(n *atomic.Int64, by int64) {
		t.Helper()
		before := n.Load()
		eventually(t, "calls go on", func() bool { return n.Load() >= before+by })
	}
	for range 5 {
		grows(&acknowledged, 100)
		p.lag.Lock()
		grows(&unsure, 20)
		p.lag.Unlock()
	}
	grows(&acknowledged, 100)
	p.lag.Lock()
	grows(&unsure, 20)
	grows(&flushed, 20)
	primary.kill()
	p.lost.Store(true)
	p.lag.Unlock()
	ending.Store(true)
	callers.Wait()

	eventually(t, "the replica takes over, and the Limiter follows", func() bool {
		_, err := l.Spend(everyone.Key(""), 1)
		return err == nil
	})
	spent := func(key stint.Key) int64 {
		b, err := l.Bucket(key)
		require.NoError(t, err)
		return burst - b.Remaining
	}
	has := spent(perID.Key("a"))
	t.Logf("synced: %d acknowledged, %d perhaps, %d are there", acknowledged.Load(), unsure.Load(), has)
	require.GreaterOrEqual(t, has, acknowledged.Load())
	require.LessOrEqual(t, has, acknowledged.Load()+unsure.Load())
	has = spent(other.Key("a"))
	t.Logf("flushed: %d answered, %d perhaps, %d are there", flushed.Load(), unknown.Load(), has)
	require.Less(t, has, flushed.Load(), "the replica did not lag")
}

package redisclients_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/examples/redisclients"
	"github.com/stint-go/stint/redislimit"
)

var addr string // of the server

// serverProgram is the server of the tests.
var serverProgram = cmp.Or(os.Getenv("REDISLIMIT_TEST_SERVER"), "redis-server")

// TestMain starts a server on the loopback interface.
func TestMain(m *testing.M) {
	if _, err := exec.LookPath(serverProgram); err != nil {
		fmt.Println("skipped, because it needs " + serverProgram + "; on Debian: apt-get install redis-server")
		return
	}
	var stop func()
	addr, _, stop = start()
	code := m.Run()
	stop()
	os.Exit(code)
}

func start(args ...string) (addr string, server *os.Process, stop func()) {
	port := freePort()
	addr = net.JoinHostPort("127.0.0.1", port)
	cmd := exec.Command(serverProgram, append([]string{"--port", port, "--bind", "127.0.0.1", "--save", ""}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		panic(err)
	}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	stop = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "eady to accept connections") {
			return addr, cmd.Process, stop
		}
	}
	stop()
	panic(serverProgram + " did not start")
}

var ports sync.Map // that freePort has returned, or found in use

// freePort returns a port of the loopback interface on which nothing listens. It is
// below the ports that the system gives to connections, so that no connection takes
// it before the server does.
func freePort() string {
	for {
		port := strconv.Itoa(10_000 + rand.IntN(22_000))
		if _, given := ports.LoadOrStore(port, true); given {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			ln.Close()
			return port
		}
	}
}

// cutting is a connection. If cut is set, it ends instead of delivering the
// reply to a script.
type cutting struct {
	net.Conn
	cut, sent *atomic.Bool
}

func (c cutting) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("EVAL")) {
		c.sent.Store(true)
	}
	return c.Conn.Write(b)
}

func (c cutting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.sent.Load() && c.cut.Swap(false) {
		c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// clients returns a Client of each library for a server, with connections of
// type cutting.
func clients(t *testing.T, addr string, cut *atomic.Bool) map[string]redislimit.Client {
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		return cutting{conn, cut, new(atomic.Bool)}, err
	}
	goRedis := redis.NewClient(&redis.Options{
		ContextTimeoutEnabled: true,
		DialerRetries:         1,
		MaxRetries:            3,
		Dialer:                func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	})
	t.Cleanup(func() { goRedis.Close() })
	valkeyGo, err := valkey.NewClient(valkey.ClientOption{
		InitAddress:  []string{addr},
		DisableCache: true,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(valkeyGo.Close)
	return map[string]redislimit.Client{
		"go-redis":  redisclients.GoRedis{Pool: goRedis},
		"valkey-go": redisclients.ValkeyGo{Pool: valkeyGo},
	}
}

// open returns a Limiter of perAccount.
func open(t *testing.T, client redislimit.Client, limit stint.Limit, o redislimit.Options) *redislimit.Limiter {
	limits, err := stint.NewLimits(stint.Names{perAccount: {Label: "perAccount", Limit: limit}})
	if err != nil {
		t.Fatal(err)
	}
	lim, err := redislimit.New(client, limits, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lim.Close() })
	return lim
}

// A lost reply is ErrNoAnswer, and the script is not sent again. An error of the
// server says what is wrong. A server that does not answer, or is not there, is
// away.
func TestClients(t *testing.T) {
	addr, server, stop := start()
	defer stop()
	cut := new(atomic.Bool)
	limit := stint.PerHour(100)
	impatient := map[string]*redislimit.Limiter{}
	for name, client := range clients(t, addr, cut) {
		lim := open(t, client, limit, redislimit.Options{Timeout: 20 * time.Second, Prefix: name})
		impatient[name] = open(t, client, limit, redislimit.Options{Timeout: 200 * time.Millisecond, Prefix: name})
		key := perAccount.Key("a")
		if _, err := client.Do(t.Context(), "SET", name+":{foreign}:1", "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := lim.Spend(perAccount.Key("foreign"), 1); err == nil || !strings.Contains(err.Error(), "{foreign}") {
			t.Error(name, err)
		}
		if reply, err := client.Do(t.Context(), "NONSENSE"); !errors.As(err, new(redislimit.ServerError)) {
			t.Error(name, reply, err)
		}
		for range 10 {
			cut.Store(true)
			if _, err := lim.Spend(key, 1); !errors.Is(err, redislimit.ErrNoAnswer) || cut.Load() {
				t.Error(name, err)
			}
			for !lim.Stats().AwaySince.IsZero() { // after a broken connection the server is away
				runtime.Gosched()
			}
		}
		if b, err := lim.Bucket(key); err != nil || b.Remaining != 90 {
			t.Error(name, b.Remaining, err)
		}
	}
	for _, state := range []struct {
		name  string
		begin func()
		want  error
	}{
		{"stopped", func() { server.Signal(syscall.SIGSTOP) }, redislimit.ErrAway},
		{"continued", func() { server.Signal(syscall.SIGCONT) }, nil},
		{"killed", stop, redislimit.ErrAway},
	} {
		state.begin()
		for name, lim := range impatient {
			for {
				_, err := lim.Spend(perAccount.Key("b"), 1)
				if errors.Is(err, state.want) {
					break
				}
				if !errors.Is(err, redislimit.ErrNoAnswer) && (state.want != nil || !errors.Is(err, redislimit.ErrAway)) {
					t.Fatal(name, state.name, err)
				}
				runtime.Gosched()
			}
		}
	}
}

// A refused connection is ErrAway: nothing was sent. With the pool's own number
// of dialer retries, Timeout ends before the pool gives up, and the error is
// ErrNoAnswer.
func TestRefusedConnection(t *testing.T) {
	addr := net.JoinHostPort("127.0.0.1", freePort())
	const long = 20 * time.Second // the machine may be busy
	spend := func(dialerRetries int, timeout time.Duration) error {
		pool := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, DialerRetries: dialerRetries})
		defer pool.Close()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := redisclients.GoRedis{Pool: pool}.Eval(ctx, "EVAL", "return 1", []string{"a"}, nil)
		return err
	}
	isDial := func(err error) bool {
		op, ok := errors.AsType[*net.OpError](err)
		return ok && op.Op == "dial"
	}
	if err := spend(1, long); !isDial(err) {
		t.Error(err)
	}
	if err := spend(0, 200*time.Millisecond); isDial(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("DialerRetries is not needed any more:", err)
	}
	pool := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, DialerRetries: 1})
	defer pool.Close()
	lim := open(t, redisclients.GoRedis{Pool: pool}, stint.PerHour(100), redislimit.Options{Timeout: long})
	for range 3 {
		if _, err := lim.Spend(perAccount.Key("a"), 1); !errors.Is(err, redislimit.ErrAway) {
			t.Error(err)
		}
	}
}

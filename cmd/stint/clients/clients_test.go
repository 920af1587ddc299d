package clients

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"
)

// stint is the command.
var stint string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stint")
	if err == nil {
		stint = filepath.Join(dir, "stint")
		build := exec.Command("go", "build", "-o", stint, ".")
		build.Dir, build.Stderr = "..", os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// serve starts a server on the file. An address of "" chooses one. stop kills it.
func serve(t *testing.T, db, address string) (at string, stop func()) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	cmd := exec.Command(stint, "serve", "--db", db, "--durability", "synced", "--listen", address, "--listen", db+".resp")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadString('\n')
		require.NoError(t, err, line)
		if m := regexp.MustCompile(` at (127\.\S+)\n`).FindStringSubmatch(line); m != nil {
			go func() { _, _ = io.Copy(io.Discard, lines) }()
			return m[1], stop
		}
	}
}

// client throttles a key, alone or several times in a pipeline.
type client struct {
	throttle func(ctx context.Context, key string) ([]int64, error)
	pipeline func(ctx context.Context, keys ...string) ([][]int64, error)
	close    func()
}

const burst, count, period = 99, 100, 86400

func goRedis(_ *testing.T, network, address string) client {
	c := redis.NewClient(&redis.Options{Network: network, Addr: address})
	return client{
		func(ctx context.Context, key string) ([]int64, error) {
			return c.Do(ctx, "CL.THROTTLE", key, burst, count, period).Int64Slice()
		},
		func(ctx context.Context, keys ...string) (all [][]int64, err error) {
			p := c.Pipeline()
			var cmds []*redis.Cmd
			for _, key := range keys {
				cmds = append(cmds, p.Do(ctx, "CL.THROTTLE", key, burst, count, period))
			}
			if _, err := p.Exec(ctx); err != nil {
				return nil, err
			}
			for _, cmd := range cmds {
				one, err := cmd.Int64Slice()
				if err != nil {
					return nil, err
				}
				all = append(all, one)
			}
			return all, nil
		},
		func() { _ = c.Close() },
	}
}

// building returns a client of rueidis or of valkey-go, which have one API.
func building[C any, R interface{ AsIntSlice() ([]int64, error) }](build func(key string) C,
	do func(context.Context, C) R, doMulti func(context.Context, ...C) []R, end func()) client {
	return client{
		func(ctx context.Context, key string) ([]int64, error) { return do(ctx, build(key)).AsIntSlice() },
		func(ctx context.Context, keys ...string) (all [][]int64, err error) {
			var cmds []C
			for _, key := range keys {
				cmds = append(cmds, build(key))
			}
			for _, r := range doMulti(ctx, cmds...) {
				one, err := r.AsIntSlice()
				if err != nil {
					return nil, err
				}
				all = append(all, one)
			}
			return all, nil
		},
		end,
	}
}

func useRueidis(t *testing.T, network, address string) client {
	o := rueidis.ClientOption{InitAddress: []string{address}}
	if network == "unix" {
		o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		}
	}
	c, err := rueidis.NewClient(o)
	require.NoError(t, err)
	build := func(key string) rueidis.Completed {
		return c.B().Arbitrary("CL.THROTTLE").Keys(key).Args(fmt.Sprint(burst), fmt.Sprint(count), fmt.Sprint(period)).Build()
	}
	return building(build, c.Do, c.DoMulti, c.Close)
}

func valkeyGo(t *testing.T, network, address string) client {
	o := valkey.ClientOption{InitAddress: []string{address}}
	if network == "unix" {
		o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		}
	}
	c, err := valkey.NewClient(o)
	require.NoError(t, err)
	build := func(key string) valkey.Completed {
		return c.B().Arbitrary("CL.THROTTLE").Keys(key).Args(fmt.Sprint(burst), fmt.Sprint(count), fmt.Sprint(period)).Build()
	}
	return building(build, c.Do, c.DoMulti, c.Close)
}

// Each client throttles, over TCP and a Unix socket, alone and in a pipeline, and
// goes on after the server was killed and started again.
func TestClients(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no Unix sockets")
	}
	for name, connect := range map[string]func(t *testing.T, network, address string) client{
		"go-redis": goRedis, "rueidis": useRueidis, "valkey-go": valkeyGo,
	} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(name+"/"+network, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				db := filepath.Join(t.TempDir(), "limits.db")
				at, stop := serve(t, db, "")
				address := at
				if network == "unix" {
					address = db + ".resp"
				}
				c := connect(t, network, address)
				defer c.close()
				got, err := c.throttle(ctx, "user:1")
				require.NoError(t, err)
				require.Equal(t, []int64{0, 100, 99, -1}, got[:4])
				all, err := c.pipeline(ctx, "user:1", "user:2", "user:1", "user:3")
				require.NoError(t, err)
				for i, left := range []int64{98, 99, 97, 99} {
					require.Equal(t, []int64{0, 100, left, -1}, all[i][:4])
				}
				stop()
				serve(t, db, at)
				for {
					if got, err = c.throttle(ctx, "user:1"); err == nil {
						break
					}
					require.NoError(t, ctx.Err(), err)
				}
				require.LessOrEqual(t, got[2], int64(96), "the state is there")
				require.GreaterOrEqual(t, got[2], int64(90))
			})
		}
	}
}

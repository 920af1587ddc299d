package netlimit

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
)

// serverVar makes this program the server of the benchmarks.
const serverVar = "STINT_TEST_TLS_SERVER"

// flooder is the address whose connections the server denies.
const flooder = "127.0.0.2"

func TestMain(m *testing.M) {
	if os.Getenv(serverVar) == "" {
		os.Exit(m.Run())
	}
	testing.Init()
	testing.Benchmark(func(b *testing.B) {
		limits, err := stint.NewLimits(stint.Names{perPeer: {Label: "connections", Limit: stint.PerSecond(1e9)}},
			stint.Override{Key: perPeer.Key(flooder), Limit: stint.Blocked})
		require.NoError(b, err)
		lim, err := stint.New(stint.NewMemStore(), limits, nil)
		require.NoError(b, err)
		addr, _ := tlsServer(b, lim, &Options{Rate: perPeer, InFlight: 1000})
		fmt.Println(addr)
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	})
}

// server is a TLS server in a process of its own, so that its CPU time counts.
type server struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  string
}

func startServer(b *testing.B) *server {
	s := &server{cmd: subprocess.Command(context.Background(), os.Args[0])}
	s.cmd.Env = append(os.Environ(), serverVar+"=1")
	s.cmd.Stderr = os.Stderr
	var err error
	s.stdin, err = s.cmd.StdinPipe()
	require.NoError(b, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, s.cmd.Start())
	_, err = fmt.Fscan(out, &s.addr)
	require.NoError(b, err)
	return s
}

// stop ends the server, and returns the CPU time that it used.
func (s *server) stop(b *testing.B) time.Duration {
	require.NoError(b, s.stdin.Close())
	require.NoError(b, s.cmd.Wait())
	return s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()
}

// connect opens a connection from an address of this machine, with a handshake
// unless it is the flooder.
func (s *server) connect(from string) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.Dial("tcp", s.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if from == flooder {
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
}

// BenchmarkConnection measures the CPU time that a connection costs the server,
// with a handshake and denied.
func BenchmarkConnection(b *testing.B) {
	for name, from := range map[string]string{"handshake": "127.0.0.1", "denied": flooder} {
		b.Run(name, func(b *testing.B) {
			idle := startServer(b).stop(b)
			s := startServer(b)
			n := 0
			for b.Loop() {
				if err := s.connect(from); (err == nil) != (name == "handshake") {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64(max(0, s.stop(b)-idle))/float64(n), "server-ns/conn")
		})
	}
}

// BenchmarkFlood measures how long a quiet client waits for a connection while
// another address opens 5,000 a second, and while none does.
func BenchmarkFlood(b *testing.B) {
	for _, name := range []string{"alone", "flooded"} {
		b.Run(name, func(b *testing.B) {
			s := startServer(b)
			ctx, stop := context.WithCancel(b.Context())
			var flood sync.WaitGroup
			begun, opened := time.Now(), 0
			if name == "flooded" {
				flood.Go(func() {
					for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
						for ; opened < int(time.Since(begun)/(200*time.Microsecond)); opened++ {
							if err := s.connect(flooder); err == nil || strings.Contains(err.Error(), "i/o timeout") {
								panic(fmt.Sprint("the flood is not denied: ", err))
							}
						}
					}
				})
			}
			var took []time.Duration
			for b.Loop() {
				at := time.Now()
				if err := s.connect("127.0.0.1"); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(at))
			}
			stop()
			flood.Wait()
			elapsed := time.Since(begun)
			s.stop(b)
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(opened)/elapsed.Seconds(), "denied/s")
		})
	}
}

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit/statuspage"
	"github.com/stint-go/stint/internal/display"
)

type serveFlags struct {
	db           dbFlags
	limits       limitFlags
	listen       []string
	group        string
	passwordFile string
	durability   string
	most         int
	metrics      string
}

func newServe() *cobra.Command {
	f := &serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve limits to programs in any language that has a Redis client",
		Long: `Serve limits to programs in any language that has a Redis client: PHP, Python, Ruby, JavaScript.
CL.THROTTLE is the command of redis-cell, and its limit is in the command:
  CL.THROTTLE KEY MAX_BURST COUNT PERIOD [QUANTITY]
The reply is five integers: 1 if denied, the burst, the tokens left, the seconds until a retry (-1 if
allowed), and the seconds until the bucket is full. A quantity of 0 only looks. DEL KEY fills a bucket.
GCRA KEY MAX_BURST COUNT PERIOD [TOKENS N] is the same with times in fractions of a second. MULTI, EXEC
and DISCARD work as in Redis. STINT.HEALTH replies OK, or an error if the server cannot save.

With --limits these commands use the limits of a file, by label. All of a STINT.SPEND are allowed, or
nothing is spent:
  STINT.SPEND LABEL ID COST [LABEL ID COST ...]     STINT.CHECK and STINT.REFUND likewise
  STINT.RESET LABEL ID [LABEL ID ...]               STINT.HOLD LABEL ID SECONDS
  STINT.WAIT LABEL ID COST SECONDS                  1 if the tokens came, 0 after SECONDS (0: no bound)
HUP loads the files again.

Without --listen, the server listens at FILE.resp, which only the user may open. --listen is the path
of a socket, or HOST:PORT; it may be repeated. Without a password, HOST must be a loopback address.
Sockets that systemd passes are used instead.

Other commands, and programs that use package hostlimit, work on the file at the same time. A second
serve of the same socket waits, and takes over when the first ends. TERM and INT answer what was read,
save, and end with status 0.`,
		Example: `  stint serve --db limits.db &
  redis-cli -s limits.db.resp CL.THROTTLE user:1 15 30 60
  stint serve --db limits.db --listen /run/stint/resp.sock --socket-group www-data
  stint serve --db limits.db --listen 127.0.0.1:6380 --password-file secret --durability leased`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilInterrupted(cmd)
			defer stop()
			return f.serve(ctx, cmd.ErrOrStderr())
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.registerFiles(cmd, "a YAML `FILE` of limits, for the commands STINT.*")
	flags := cmd.Flags()
	flags.StringArrayVar(&f.listen, "listen", nil, "an `ADDRESS`: the path of a socket, or HOST:PORT (default FILE.resp)")
	flags.StringVar(&f.group, "socket-group", "", "a `GROUP` whose members may open the sockets, too")
	flags.StringVar(&f.passwordFile, "password-file", "", "a `FILE` whose first line clients must send with AUTH or HELLO")
	flags.StringVar(&f.durability, "durability", stint.Flushed.String(),
		"`LEVEL` of CL.THROTTLE: memory, flushed, leased or synced")
	flags.StringVar(&f.metrics, "metrics", "", "serve counts for Prometheus at http://`HOST:PORT`/metrics")
	flags.IntVar(&f.most, "max-connections", 1024, "refuse connections beyond `N`")
	f.limits.registerShares(cmd)
	_ = cmd.MarkFlagFilename("password-file")
	levels := []string{"memory", "flushed", "leased", "synced"}
	_ = cmd.RegisterFlagCompletionFunc("durability", cobra.FixedCompletions(levels, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// throttleLabel is the label of the buckets of CL.THROTTLE.
const throttleLabel = "CL.THROTTLE"

type server struct {
	limiter    *hostlimit.Limiter
	throttle   stint.Name
	durability stint.Durability
	labels     map[string]stint.Name // of the limits file; they do not change
	password   *[sha256.Size]byte    // its sum; nil without a password
	most       int

	log func(format string, args ...any)

	ending    context.Context // ends when the server stops reading
	accepting sync.WaitGroup  // listeners
	serving   sync.WaitGroup  // connections
	started   time.Time
	commands  atomic.Int64 // answered
	connected atomic.Int64
	ids       atomic.Int64 // of connections
}

func (f *serveFlags) serve(ctx context.Context, stderr io.Writer) (err error) {
	s := &server{ending: ctx, most: f.most, started: time.Now()}
	s.log = log.New(stderr, "stint: ", 0).Printf
	path, _, err := f.db.file()
	if err != nil {
		return err
	}
	if err := f.check(s); err != nil {
		return err
	}
	at, err := f.sockets(path+".resp", s.password != nil)
	if err != nil {
		return err
	}
	var metrics net.Listener // nil without --metrics
	if f.metrics != "" {
		if metrics, err = net.Listen("tcp", f.metrics); err != nil {
			return failed(fmt.Errorf("--metrics: %w", err))
		}
		defer metrics.Close()
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP) // also while the server waits to take over
	defer signal.Stop(reload)
	signal.Ignore(syscall.SIGPIPE) // or the server ends if the program that reads its log does
	defer signal.Reset(syscall.SIGPIPE)
	opened := make(chan error, 1)
	go func() { opened <- s.open(f, path) }()
	select {
	case err := <-opened:
		if err != nil {
			return err
		}
	case <-ctx.Done(): // there is nothing to save, and the lock ends with this process
		return nil
	}
	reloading, endReloads := context.WithCancel(ctx)
	var reloader sync.WaitGroup
	reloader.Go(func() { s.reloads(reloading, f, reload) })
	defer func() {
		endReloads()
		reloader.Wait()
		err = errors.Join(err, failed(s.limiter.Close()))
	}()
	if metrics != nil {
		defer s.serveMetrics(metrics).Close()
	}
	listeners, err := f.listeners(ctx, s, at)
	if err != nil || len(listeners) == 0 { // the signal came first
		return failed(err)
	}
	for _, l := range listeners {
		s.log("serving %s at %s", display.Visible(path), display.Visible(l.Addr().String()))
		s.accepting.Go(func() { s.accept(l) })
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	<-ctx.Done()
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	for _, l := range listeners {
		_ = l.Close()
	}
	s.accepting.Wait() // later connections stay with systemd, which keeps the sockets
	s.serving.Wait()
	return nil
}

// serveMetrics serves the counts of all limits over HTTP, without ids.
func (s *server) serveMetrics(l net.Listener) *http.Server {
	page := statuspage.New(s.limiter, &statuspage.Options{HideIDs: true})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		r.URL.RawQuery = "format=prometheus"
		page.ServeHTTP(w, r)
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = web.Serve(l) }()
	s.log("serving counts at http://%s/metrics", l.Addr())
	return web
}

// check reads the flags, the password and the limits, before there is a file.
func (f *serveFlags) check(s *server) (err error) {
	cmd := f.limits.cmd
	if f.most < 1 {
		return misuse(cmd, "--max-connections %d: must be 1 or more", f.most)
	}
	if s.durability, err = stint.ParseDurability(f.durability); err != nil {
		return misuse(cmd, "--durability %q: must be memory, flushed, leased or synced", f.durability)
	}
	if f.passwordFile != "" {
		content, err := os.ReadFile(f.passwordFile)
		if err != nil {
			return err
		}
		first, _, _ := bytes.Cut(content, []byte("\n"))
		if first = bytes.TrimSuffix(first, []byte("\r")); len(first) == 0 {
			return fmt.Errorf("--password-file: the first line of %s is empty", f.passwordFile)
		}
		sum := sha256.Sum256(first)
		s.password = &sum
	}
	_, _, err = f.numbered(counter())
	return err
}

// open opens the file. Names get the numbers that the file has for their labels,
// or that the program has which has it open.
func (s *server) open(f *serveFlags, path string) error {
	in, err := f.db.reach(writing)
	if err != nil {
		return err
	}
	limits, numbers, err := f.numbered(in.declare)
	if err = errors.Join(err, in.Close()); err != nil {
		return err
	}
	s.throttle, s.labels = numbers[throttleLabel], numbers
	delete(s.labels, throttleLabel)
	s.limiter, err = hostlimit.Open(path, limits, &hostlimit.Options{
		LimiterOptions: stint.Options{LockTimeout: f.db.lockTimeout, OnEvent: func(e stint.Event) {
			s.log("%s", strings.TrimSuffix(fmt.Sprintf("%v: %v", e.Kind, e.Err), ": <nil>"))
		}},
		OnEvent: func(e hostlimit.Event) {
			s.log("%s", strings.TrimSuffix(fmt.Sprintf("%v: %v", e.Role, e.Err), ": <nil>"))
		},
	})
	return failed(ifEmpty(path, err))
}

// numbered returns the limits of the flags, and the numbers of their labels and of
// throttleLabel.
func (f *serveFlags) numbered(number func(label string) (stint.Name, error)) (
	limits *stint.Limits, numbers map[string]stint.Name, err error) {
	if f.limits.file == "" {
		f.limits.name = throttleLabel
	} else {
		f.limits.also = []stint.NameSpec{{Label: throttleLabel, Limit: stint.Unlimited}}
	}
	if limits, numbers, err = f.limits.load(number); err != nil {
		return nil, nil, err
	}
	if _, limited := limits.For(numbers[throttleLabel].Key("any")); limited {
		err = fmt.Errorf("%s: the label %s is that of the command", f.limits.file, throttleLabel)
	}
	return limits, numbers, err
}

// reloads loads the limits files again at each signal, until ctx ends.
func (s *server) reloads(ctx context.Context, f *serveFlags, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			if err := s.reload(f); err != nil {
				s.log("the limits stay as they are: %v", err)
			} else {
				s.log("loaded %s", display.Visible(f.limits.file))
			}
		}
	}
}

func (s *server) reload(f *serveFlags) error {
	if f.limits.file == "" {
		return errors.New("there is no --limits")
	}
	f.limits.piped = nil
	limits, _, err := f.numbered(func(label string) (stint.Name, error) {
		if label == throttleLabel {
			return s.throttle, nil
		}
		name, ok := s.labels[label]
		if !ok {
			return 0, fmt.Errorf("the limit %q is new: restart the server to add it", label)
		}
		return name, nil
	})
	if err != nil {
		return err
	}
	for label, name := range s.labels {
		if _, ok := limits.Spec(name); !ok {
			return fmt.Errorf("the limit %q is missing: restart the server to remove it", label)
		}
	}
	return s.limiter.SetLimits(limits)
}

// accept serves the connections of a listener until it is closed.
func (s *server) accept(l net.Listener) {
	var reported time.Time
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			if time.Since(reported) >= errorsEvery {
				reported = time.Now()
				s.log("%v", err)
			}
			if !pause(s.ending) {
				return
			}
			continue
		}
		if s.connected.Add(1) > int64(s.most) {
			refuse(conn)
			s.connected.Add(-1)
			continue
		}
		s.serving.Go(newServeConn(s, conn, s.ids.Add(1)).serve)
	}
}

// errorsEvery is how often accept logs that it fails.
const errorsEvery = 10 * time.Second

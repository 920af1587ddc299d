// Package serve answers the commands of Redis clients from the file of the
// buckets. Read the files in this order: server, listen, conn, commands, throttle,
// limits, transaction, metrics. The protocol is in package resp.
package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

// ThrottleLabel is the label of the buckets of CL.THROTTLE.
const ThrottleLabel = "CL.THROTTLE"

// Config is what a server serves, and where.
type Config struct {
	File         source.File
	LimitsFile   string // for messages; "" without limits for STINT.*
	Load         LoadFunc
	Listen       []string // paths of sockets and HOST:PORT; FILE.resp if it is empty
	Group        string   // whose members may open the sockets, too
	PasswordFile string
	Durability   string // of CL.THROTTLE
	Most         int    // connections
	Metrics      string // HOST:PORT; "" without
	Version      string // of the program
}

// LoadFunc reads the limits and adds one that is not in their files. number
// returns the number of a label; nil numbers them from 1. If again is set, the
// files have changed.
type LoadFunc func(also stint.NameSpec, number func(label string) (stint.Name, error), again bool) (
	*stint.Limits, map[string]stint.Name, error)

// misuse returns an error that sends the user to the command's help.
func misuse(format string, args ...any) error {
	return fmt.Errorf(format+"; see stint serve --help", args...)
}

type server struct {
	version    string
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

// Serve serves until ctx ends, and logs to stderr.
func (f *Config) Serve(ctx context.Context, stderr io.Writer) (err error) {
	s := &server{version: f.Version, ending: ctx, most: f.Most, started: time.Now()}
	s.log = log.New(stderr, "stint: ", 0).Printf
	path, _, err := f.File.Locate()
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
	if f.Metrics != "" {
		if metrics, err = net.Listen("tcp", f.Metrics); err != nil {
			return console.Failed(fmt.Errorf("--metrics: %w", err))
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
		err = errors.Join(err, console.Failed(s.limiter.Close()))
	}()
	if metrics != nil {
		go s.serveMetrics(metrics)
	}
	listeners, err := f.listeners(ctx, s, at)
	if err != nil || len(listeners) == 0 { // the signal came first
		return console.Failed(err)
	}
	for _, l := range listeners {
		s.log("serving %s at %s", display.Visible(path), display.Visible(l.Addr().String()))
		s.accepting.Go(func() { s.accept(l, s.connect) })
	}
	notify("READY=1")
	<-ctx.Done()
	notify("STOPPING=1")
	for _, l := range listeners {
		_ = l.Close()
	}
	s.accepting.Wait() // later connections stay with systemd, which keeps the sockets
	s.serving.Wait()
	return nil
}

// check reads the flags, the password and the limits, before there is a file.
func (f *Config) check(s *server) (err error) {
	if f.Most < 1 {
		return misuse("--max-connections %d: must be 1 or more", f.Most)
	}
	if s.durability, err = stint.ParseDurability(f.Durability); err != nil {
		return misuse("--durability %q: must be memory, flushed, leased or synced", f.Durability)
	}
	if f.PasswordFile != "" {
		content, err := os.ReadFile(f.PasswordFile)
		if err != nil {
			return err
		}
		first, _, _ := bytes.Cut(content, []byte("\n"))
		if first = bytes.TrimSuffix(first, []byte("\r")); len(first) == 0 {
			return fmt.Errorf("--password-file: the first line of %s is empty", f.PasswordFile)
		}
		sum := sha256.Sum256(first)
		s.password = &sum
	}
	_, _, err = f.numbered(nil, false)
	return err
}

// open opens the file. Names get the numbers that the file has for their labels,
// or that the program has which has it open.
func (s *server) open(f *Config, path string) error {
	in, err := f.File.Reach(source.Writing)
	if err != nil {
		return err
	}
	limits, numbers, err := f.numbered(in.Declare, false)
	if err = errors.Join(err, in.Close()); err != nil {
		return err
	}
	s.throttle, s.labels = numbers[ThrottleLabel], numbers
	delete(s.labels, ThrottleLabel)
	s.limiter, err = hostlimit.Open(path, limits, &hostlimit.Options{
		LimiterOptions: stint.Options{LockTimeout: f.File.LockTimeout, OnEvent: func(e stint.Event) {
			s.log("%s", strings.TrimSuffix(fmt.Sprintf("%v: %v", e.Kind, e.Err), ": <nil>"))
		}},
		OnEvent: func(e hostlimit.Event) {
			s.log("%s", strings.TrimSuffix(fmt.Sprintf("%v: %v", e.Role, e.Err), ": <nil>"))
		},
	})
	return console.Failed(source.IfEmpty(path, err))
}

// numbered returns the limits of the flags, and the numbers of their labels and of
// ThrottleLabel.
func (f *Config) numbered(number func(label string) (stint.Name, error), again bool) (
	limits *stint.Limits, numbers map[string]stint.Name, err error) {
	also := stint.NameSpec{Label: ThrottleLabel, Limit: stint.Unlimited}
	if limits, numbers, err = f.Load(also, number, again); err != nil {
		return nil, nil, err
	}
	if limits.For(numbers[ThrottleLabel].Key("any")) != stint.Unlimited {
		err = fmt.Errorf("%s: the label %s is that of the command", f.LimitsFile, ThrottleLabel)
	}
	return limits, numbers, err
}

// reloads loads the limits files again at each signal, until ctx ends.
func (s *server) reloads(ctx context.Context, f *Config, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			if err := s.reload(f); err != nil {
				s.log("the limits stay as they are: %v", err)
			} else {
				s.log("loaded %s", display.Visible(f.LimitsFile))
			}
		}
	}
}

func (s *server) reload(f *Config) error {
	if f.LimitsFile == "" {
		return errors.New("there is no --limits")
	}
	limits, _, err := f.numbered(func(label string) (stint.Name, error) {
		if label == ThrottleLabel {
			return s.throttle, nil
		}
		name, ok := s.labels[label]
		if !ok {
			return 0, fmt.Errorf("the limit %q is new: restart the server to add it", label)
		}
		return name, nil
	}, true)
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

// accept passes the connections of a listener to connect, until it is closed.
func (s *server) accept(l net.Listener, connect func(net.Conn)) {
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
		connect(conn)
	}
}

// errorsEvery is how often accept logs that it fails.
const errorsEvery = 10 * time.Second

// connect serves a client, unless there are too many.
func (s *server) connect(conn net.Conn) {
	if s.connected.Add(1) > int64(s.most) {
		refuse(conn)
		s.connected.Add(-1)
		return
	}
	s.serving.Go(newServeConn(s, conn, s.ids.Add(1)).serve)
}

// The benchmarks of stint and of its alternatives.
//
//	go run . [-quick] [-only decision,memory,durable,busy,flushed,growth,live] [-ids 10000000] [-flood 100000000] [-dir DIR] [-results DIR]
//
// It prints tables, and writes them to results/*.md, with charts in
// results/*.svg. Besides Go it needs a C compiler for SQLite, and redis-server
// for Redis. If one of these is missing, the tables leave it out and say so.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stint-go/stint/bench/turns"
)

// bench is one run of the program.
type bench struct {
	quick   bool
	maxIDs  int
	rounds  int
	dir     string // for the files of contestants
	results string
	best    time.Duration // the shortest spin
	skipped map[string]string
	mu      sync.Mutex
	failed  map[string]string // contestants that dropped out, and why
	flooded int               // new ids of the flood
}

var tables = []struct {
	name string
	run  func(*bench) error
}{
	{"decision", (*bench).decision},
	{"memory", (*bench).memory},
	{"durable", (*bench).durable},
	{"busy", (*bench).busy},
	{"flushed", (*bench).flushed},
	{"growth", (*bench).growth},
	{"live", (*bench).live},
}

func main() {
	runtime.LockOSThread() // children end with the thread that started them
	if _, ok := turns.Args(); ok {
		childMain()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == computeArg {
		for {
			spin()
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() (err error) {
	b := &bench{rounds: 5, skipped: make(map[string]string), failed: make(map[string]string)}
	flag.BoolVar(&b.quick, "quick", false, "take a few minutes only: short rounds, and at most 100,000 ids")
	flag.IntVar(&b.maxIDs, "ids", 0, "leave out workloads with more `ids` (default 10000000, with -quick 100000)")
	flag.IntVar(&b.flooded, "flood", 0, "the new `ids` of the flood in the table growth (default ten times -ids)")
	flag.StringVar(&b.results, "results", "results", "the `folder` for the tables and charts")
	flag.StringVar(&b.dir, "dir", "",
		"the `folder` for the contestants' files, on the measured disk (default: the system's for temporary files)")
	only := flag.String("only", "", "the `tables` to make, of decision,memory,durable,busy,flushed,growth,live (default all)")
	flag.Parse()
	switch {
	case b.maxIDs != 0:
	case b.quick:
		b.maxIDs = 100_000
	default:
		b.maxIDs = 10_000_000
	}
	if b.flooded == 0 {
		b.flooded = 10 * b.maxIDs
	}
	if b.dir, err = os.MkdirTemp(b.dir, "stint-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		os.RemoveAll(b.dir)
		os.Exit(1)
	}()
	if err := os.MkdirAll(b.results, 0o755); err != nil {
		return err
	}
	b.best = calibrate()
	fmt.Println(b.header())

	known := 0
	var failed []error
	for _, t := range tables {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), t.name) {
			continue
		}
		known++
		begun := time.Now()
		clear(b.failed)
		if err := t.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
		fmt.Printf("(%s took %v)\n\n", t.name, time.Since(begun).Round(time.Second))
	}
	if known == 0 {
		return fmt.Errorf("-only %s: no such table", *only)
	}
	return errors.Join(failed...)
}

// header has the machine, the versions and the command, for the top of each file of results.
func (b *bench) header() string {
	var s strings.Builder
	kernel, _, _ := strings.Cut(output("uname", "-r"), "-") // what follows is the distribution's
	fmt.Fprintf(&s, "- command: `go run . %s`, %s\n", strings.Join(os.Args[1:], " "),
		time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(&s, "- machine: %s, %d cores, %.0f GiB, %s/%s, kernel %s, files on %s\n", cpuModel(), runtime.NumCPU(),
		float64(memTotal())/(1<<30), runtime.GOOS, runtime.GOARCH, kernel, output("stat", "-f", "-c", "%T", b.dir))
	fmt.Fprintf(&s, "- %s, stint %s, Redis %s", runtime.Version(), stintVersion(), redisVersion())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(rivals, m.Path) {
				fmt.Fprintf(&s, ", %s %s", m.Path, m.Version)
			}
		}
	}
	fmt.Fprintf(&s, "\n- each figure is the median of %d rounds or more, the contestants taking turns\n", b.rounds)
	return s.String()
}

var rivals = []string{
	"golang.org/x/time", "github.com/sethvargo/go-limiter", "github.com/throttled/throttled/v2",
	"github.com/ulule/limiter/v3",
	"github.com/letsencrypt/boulder", "github.com/redis/go-redis/v9", "github.com/go-redis/redis_rate/v10",
	"github.com/mattn/go-sqlite3", "github.com/cockroachdb/pebble/v2", "github.com/dgraph-io/badger/v4",
	"go.etcd.io/bbolt",
}

// stintVersion returns the commit that is measured.
func stintVersion() string {
	version := output("git", "rev-parse", "--short", "HEAD")
	if output("git", "status", "--porcelain", "--", "..", ":!../bench") != "" {
		version += ", changed"
	}
	return version
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(out))
}

func cpuModel() string { return procText("/proc/cpuinfo", "model name") }

func memTotal() (n int64) {
	fmt.Sscan(procText("/proc/meminfo", "MemTotal"), &n)
	return n * 1024
}

func procText(file, word string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "?"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == word {
			return strings.TrimSpace(value)
		}
	}
	return "?"
}

// write writes one file of results.
func (b *bench) write(name, text string) error {
	return os.WriteFile(filepath.Join(b.results, name), []byte(text), 0o644)
}

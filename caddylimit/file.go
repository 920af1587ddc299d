package caddylimit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
)

// files has the open files by absolute path. A reload provisions its apps
// before the old ones are cleaned up, so a file stays open over it.
var files = caddy.NewUsagePool()

// A file is a Limiter that the apps of several configurations share, one after
// the other.
type file struct {
	path    string
	limiter *hostlimit.Limiter

	mu      sync.Mutex
	numbers map[string]stint.Name // of every zone ever seen
	inForce *App                  // whose limits the limiter has
}

// openFile returns the file at a path, which it opens unless another
// configuration has it open. The caller must close it.
func openFile(path string) (*file, error) {
	value, _, err := files.LoadOrNew(path, func() (caddy.Destructor, error) {
		f := &file{path: path, numbers: make(map[string]stint.Name)}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		labels, err := hostlimit.Labels(path)
		if err != nil {
			return nil, f.explain(err)
		}
		names := make(stint.Names, len(labels))
		for number, label := range labels {
			f.numbers[label] = number
			names[number] = stint.NameSpec{Label: label, Limit: stint.Unlimited}
		}
		limits, err := stint.NewLimits(names, nil, nil)
		if err != nil {
			return nil, err
		}
		f.limiter, err = hostlimit.Open(path, limits, &hostlimit.Options{
			LimiterOptions: stint.Options{OnEvent: f.logEvent},
			OnEvent:        f.logHostEvent,
		})
		if err != nil {
			return nil, f.explain(err)
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*file), nil
}

// close closes the file if no other configuration has it open.
func (f *file) close() error {
	_, err := files.Delete(f.path)
	return err
}

// Destruct implements caddy.Destructor.
func (f *file) Destruct() error { return f.limiter.Close() }

// explain adds to an error what an operator can do.
func (f *file) explain(err error) error {
	switch {
	case errors.Is(err, stint.ErrCorrupt):
		return fmt.Errorf("%w; look at it with: stint verify %s", err, f.path)
	case errors.Is(err, stint.ErrFormat):
		return fmt.Errorf("%w; %s is not a file of stint: name another one with the option file", err, f.path)
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

// numberLocked returns the number of a zone, and gives it the next free one if
// it is new. Other processes that share the file do the same, so a number is
// declared at once.
func (f *file) numberLocked(zone string) (stint.Name, error) {
	for {
		// Another process may have seen the zone, and others.
		known := len(f.numbers)
		if _, ok := f.numbers[zone]; !ok {
			if err := f.learnLocked(declared); err != nil {
				return 0, err
			}
		}
		if n, ok := f.numbers[zone]; ok {
			return n, nil
		}
		n := f.free()
		if n == 0 {
			return 0, fmt.Errorf("zone %s: %s has no number left", zone, f.path)
		}
		err := f.limiter.Declare(stint.Names{n: {Label: zone, Limit: stint.Unlimited}})
		if err == nil {
			f.numbers[zone] = n
			return n, nil
		}
		if !errors.Is(err, stint.ErrNameMismatch) {
			return 0, f.explain(err)
		}
		// The file may have labels that the process which has it does not declare.
		if err := f.learnLocked(hostlimit.Labels); err != nil {
			return 0, err
		}
		if len(f.numbers) == known {
			return 0, f.explain(err)
		}
	}
}

// learnLocked notes the numbers of labels.
func (f *file) learnLocked(from func(path string) (map[stint.Name]string, error)) error {
	labels, err := from(f.path)
	if err != nil {
		return f.explain(err)
	}
	for number, label := range labels {
		f.numbers[label] = number
	}
	return nil
}

// declared returns the labels that the process which has the file declares.
// Unlike those of hostlimit.Labels they need no copy of the file.
func declared(path string) (map[stint.Name]string, error) {
	owner, err := hostlimit.Dial(path, nil, nil)
	if errors.Is(err, hostlimit.ErrNoOwner) { // it changes just now
		return hostlimit.Labels(path)
	}
	if err != nil {
		return nil, err
	}
	return owner.Labels(), owner.Close()
}

// free returns the lowest number that no zone has, or 0.
func (f *file) free() stint.Name {
	taken := make(map[stint.Name]bool, len(f.numbers))
	for _, n := range f.numbers {
		taken[n] = true
	}
	n := stint.Name(1)
	for taken[n] {
		n++
	}
	return n
}

func logger() *zap.Logger { return caddy.Log().Named("stint") }

func (f *file) logEvent(e stint.Event) {
	log := logger().With(zap.String("file", f.path), zap.Stringer("event", e.Kind))
	if e.Err == nil { // of FlushRecovered and FileBack, and of SaveEnded if it succeeded
		log.Info("the file works again")
	} else {
		log.Error("the file needs attention", zap.Error(e.Err))
	}
}

func (f *file) logHostEvent(e hostlimit.Event) {
	logger().Info("the processes that share the file changed",
		zap.String("file", f.path), zap.Stringer("event", e.Kind), zap.Error(e.Err))
}

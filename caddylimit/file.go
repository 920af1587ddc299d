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
	zones   stint.Names // of all configurations of this process, without limits
	inForce *App        // whose limits the limiter has
	next    *App        // which replaces it, once a request comes to it; nil if there is none
}

// openFile returns the file at a path, which it opens unless another
// configuration has it open. The caller must close it.
func openFile(path string) (*file, error) {
	value, _, err := files.LoadOrNew(path, func() (caddy.Destructor, error) {
		f := &file{path: path, zones: make(stint.Names)}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		// Zones are declared once there are some. Names of other programs are theirs
		// to declare: only they know whether a Name has one bucket.
		none, err := stint.NewLimits(nil)
		if err != nil {
			return nil, err
		}
		f.limiter, err = hostlimit.Open(path, none, &hostlimit.Options{
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

// setLimits puts limits in force. If only what they convert could not be saved, they
// are in force all the same.
func (f *file) setLimits(limits *stint.Limits) error {
	err := f.limiter.SetLimits(limits)
	switch {
	case errors.Is(err, stint.ErrNotDurable):
		logger().Warn("the limits are in force", zap.Error(f.explain(err)))
	case err != nil:
		return f.explain(err)
	}
	return nil
}

// numberLocked returns the number of a zone, which gets the next free one if it
// is new to the file.
func (f *file) numberLocked(zone string) (stint.Name, error) {
	n, err := f.limiter.Number(zone)
	if err != nil {
		return 0, fmt.Errorf("zone %s: %w", zone, f.explain(err))
	}
	f.zones[n] = stint.NameSpec{Label: zone, Limit: stint.Unlimited}
	return n, nil
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
		zap.String("file", f.path), zap.Stringer("role", e.Role), zap.Error(e.Err))
}

package caddylimit

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
)

func init() {
	caddy.RegisterModule(App{})
}

// App has the file of the buckets, and the limits of all zones of a
// configuration.
type App struct {
	// File is the path of the file. The default is stint/limits.db in Caddy's data
	// directory.
	File string `json:"file,omitempty"`

	path    string
	zones   map[string]*Zone           // one of each name
	all     []*Zone                    // also those with the name of another one
	onStart []func(*hostlimit.Limiter) // of handlers, which need the Limiter
	metrics *prometheus.CounterVec

	file   *file                // from Start on
	limits *stint.Limits        // of the zones, from Start on
	pages  []httplimit.Observer // of the status pages, from Start on
	before *App                 // whose limits were in force before
	again  time.Time            // no request tries to enforce before, because an attempt has failed

	started, ready       context.Context    // ended by the following; started ends ready, too
	setStarted, setReady context.CancelFunc // once the limits are in force; once they may be, or never will
}

// CaddyModule implements caddy.Module.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "stint", New: func() caddy.Module { return new(App) }}
}

// Provision implements caddy.Provisioner. It leaves the file alone, because
// caddy validate provisions too, perhaps as another user.
func (a *App) Provision(ctx caddy.Context) error {
	a.init() // before an error, after which Cleanup is called
	path := cmp.Or(a.File, filepath.Join(caddy.AppDataDir(), "stint", "limits.db"))
	path, err := filepath.Abs(caddy.NewReplacer().ReplaceAll(path, ""))
	if err != nil {
		return err
	}
	a.path, a.zones = path, make(map[string]*Zone)
	a.metrics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "stint", Name: "requests_total",
		Help: "Requests to which a zone applied, by result.",
	}, []string{"zone", "result"})
	return ctx.GetMetricsRegistry().Register(a.metrics)
}

func (a *App) init() {
	a.started, a.setStarted = context.WithCancel(context.Background())
	a.ready, a.setReady = context.WithCancel(a.started)
}

// register adds a zone to the limits of the configuration.
func (a *App) register(z *Zone) error {
	if first, ok := a.zones[z.Name]; ok {
		if err := z.conflict(first); err != nil {
			return err
		}
	} else {
		a.zones[z.Name] = z
	}
	a.all = append(a.all, z)
	return nil
}

// Start implements caddy.App. It opens the file, unless an earlier configuration
// has it open, and puts the limits of the configuration in force. If an earlier
// configuration is in force, zones that both have keep its limits until the first
// request to the new one, or until the earlier one is stopped: a later app may
// fail, and a smaller limit that comes and goes would have cut buckets down.
func (a *App) Start() (err error) {
	if a.file, err = openFile(a.path); err != nil {
		return err
	}
	f := a.file
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, z := range a.all {
		if z.number, err = f.numberLocked(z.Name); err != nil {
			return err
		}
	}
	if a.limits, err = a.build(false); err != nil {
		return err
	}
	a.before = f.inForce
	for _, start := range a.onStart {
		start(f.limiter)
	}
	if a.before == nil {
		return a.enforceLocked()
	}
	limits, err := a.build(true)
	if err == nil {
		err = f.setLimits(limits)
	}
	if err != nil {
		return err
	}
	f.next = a
	a.setReady()
	return nil
}

// enforceLocked puts the limits of the configuration in force.
func (a *App) enforceLocked() error {
	if err := a.file.setLimits(a.limits); err != nil {
		return err
	}
	a.file.inForce, a.file.next = a, nil
	a.setStarted()
	return nil
}

// wait returns when the limits are in force. Caddy starts apps in any order, so
// requests may come before. If the configuration fails, they are answered with 503.
func (a *App) wait(ctx context.Context) error {
	if a.started.Err() != nil {
		return nil
	}
	select {
	case <-a.ready.Done():
		return a.enforce()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enforce is enforceLocked for a request to the configuration, unless another one
// has done so, or the configuration was stopped. If it fails, that is logged, the
// request is decided under the limits in force, which have all of its zones, and a
// later one tries again.
func (a *App) enforce() error {
	f := a.file
	if f == nil {
		return errNotStarted()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case a.started.Err() != nil: // perhaps a later one has replaced it since
		return nil
	case f.next != a:
		return errNotStarted()
	case time.Now().Before(a.again):
		return nil
	}
	if err := a.enforceLocked(); err != nil {
		a.again = time.Now().Add(time.Second)
		logger().Error("the limits of the new configuration are not in force yet", zap.Error(err))
	}
	return nil
}

func errNotStarted() error {
	return caddyhttp.Error(http.StatusServiceUnavailable, errors.New("the configuration could not be started"))
}

// Stop implements caddy.App. If a later app of the configuration could not
// start, the limits of the one before are put in force again. If a newer
// configuration replaces this one, its limits are put in force.
func (a *App) Stop() error {
	f := a.file
	f.mu.Lock()
	defer f.mu.Unlock()
	before := a.before
	a.before = nil // what came before it is of no use any more
	switch a {
	case f.next:
		f.next = nil
	case f.inForce:
		if f.next != nil {
			return f.next.enforceLocked()
		}
		f.inForce = before
	default:
		return nil // a newer configuration has replaced this one
	}
	if n, _ := files.References(f.path); n < 2 || before == nil {
		return nil // Caddy ends
	}
	return f.setLimits(before.limits)
}

// Cleanup implements caddy.CleanerUpper. It closes the file, unless another
// configuration uses it.
func (a *App) Cleanup() error {
	a.setReady()
	if a.file == nil {
		return nil
	}
	return a.file.close()
}

// build returns the limits of all zones. Zones of earlier configurations keep
// their Names, because requests may still be decided under them: under their
// limits, if the configuration is the one in force until now. If keep is set,
// zones that this one has, too, also keep the limits in force until now.
func (a *App) build(keep bool) (*stint.Limits, error) {
	names := maps.Clone(a.file.zones)
	zones := maps.Clone(a.zones) // whose limits are those of this configuration
	var overrides []stint.Override
	if before := a.file.inForce; before != nil {
		for _, z := range before.zones {
			if zones[z.Name] != nil && !keep {
				continue
			}
			delete(zones, z.Name)
			names[z.number], _ = before.limits.Spec(z.number)
			overrides = slices.AppendSeq(overrides, before.limits.Overrides(z.number))
		}
	}
	for _, z := range zones {
		limit, err := z.limit()
		if err != nil {
			return nil, err
		}
		names[z.number] = stint.NameSpec{Label: z.Name, Limit: limit}
	}
	for _, z := range zones {
		limits, err := z.overrides(names)
		if err != nil {
			return nil, err
		}
		for _, id := range slices.Sorted(maps.Keys(limits)) {
			overrides = append(overrides, stint.Override{Key: z.number.Key(id), Limit: limits[id]})
		}
	}
	return stint.NewLimits(names, overrides...)
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)

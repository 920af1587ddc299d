package otellimit

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/rules"
)

// Attributes of the metrics and spans.
const (
	limitKey      = attribute.Key("stint.limit")
	decisionKey   = attribute.Key("stint.decision")
	shadowKey     = attribute.Key("stint.shadow")
	inFlightKey   = attribute.Key("stint.in_flight")
	remainingKey  = attribute.Key("stint.remaining")
	retryAfterKey = attribute.Key("stint.retry_after")
	directionKey  = attribute.Key("stint.clock.direction")
)

// undeclared is the value of limitKey for Names that are not declared.
const undeclared = "_OTHER"

// A Source has what Register reports. A *stint.Limiter is one, and so is a
// *hostlimit.Limiter.
type Source interface {
	Stats() stint.Stats
	Limits() *stint.Limits
	Health() error
	Held() iter.Seq[stint.Held]
}

// Options configure Register. nil or the zero value means the defaults.
type Options struct {
	// Attributes are added to each series. Two Limiters of one program need
	// different ones, such as the name of the file. Otherwise the SDK adds up
	// the values of both.
	Attributes []attribute.KeyValue
}

// Register makes instruments that read Stats, Health and Held of s whenever metrics
// are collected. The package's documentation lists them. A collection takes as long
// with ten million buckets as with none, and longer for each that is held or has a
// queue.
//
// Unregister of the Registration ends the collection. Call it before another
// Limiter takes the place of s. A closed Limiter has its last counts. The error
// is that of the Meter, which the SDK also returns for instruments that exist
// already with another unit or kind.
func Register(m metric.Meter, s Source, opts *Options) (metric.Registration, error) {
	var attrs []attribute.KeyValue
	if opts != nil {
		attrs = opts.Attributes
	}
	r := &reader{source: s, attrs: attrs, limits: make(map[stint.Name]*limitSeries)}
	r.plain, r.forward, r.backward =
		r.with(), r.with(directionKey.String("forward")), r.with(directionKey.String("backward"))
	in := &instruments{}
	counter := func(name, unit, what string) metric.Int64Observable {
		return add(in, m.Int64ObservableCounter, name, unit, what)
	}
	gauge := func(name, unit, what string) metric.Int64Observable {
		return add(in, m.Int64ObservableUpDownCounter, name, unit, what)
	}
	r.decisions = counter("stint.decisions", "{decision}",
		"Decisions of buckets to spend or to reserve, also for Shadow rules. Checks are none.")
	r.errors = counter("stint.errors", "{error}", "Calls that returned an error.")
	r.held = gauge("stint.buckets.held", "{bucket}", "Buckets that are held, for example by a lock-out.")
	r.waiting = gauge("stint.requests.waiting", "{request}", "Requests that wait in queues.")
	r.inFlight = gauge("stint.requests.in_flight", "{request}", "Requests that have a place in flight.")
	r.resident = gauge("stint.buckets.resident", "{bucket}", "Buckets in memory.")
	r.dirty = gauge("stint.buckets.dirty", "{bucket}", "Buckets in memory, changed since they were saved.")
	r.loads = counter("stint.loads", "{load}", "Reads of buckets that were not in memory.")
	r.evictions = counter("stint.evictions", "{eviction}", "Buckets removed from memory to make space.")
	saves := func(name, plural string) saves {
		seconds := func(of, what string) metric.Float64Observable {
			return add(in, m.Float64ObservableGauge, "stint."+name+of, "s", what)
		}
		return saves{
			saves:    counter("stint."+plural, "{"+name+"}", "The "+plural+" that wrote something."),
			failures: counter("stint."+name+".failures", "{failure}", "Failed "+plural+"."),
			buckets:  counter("stint."+name+".buckets", "{bucket}", "Buckets that "+plural+" wrote or deleted."),
			last:     seconds(".duration", "How long the last "+name+" took."),
			longest:  seconds(".longest", "How long the longest "+name+" took."),
		}
	}
	r.flush, r.commit = saves("flush", "flushes"), saves("commit", "commits")
	r.file = gauge("stint.file.size", "By", "Size of the file.")
	r.free = gauge("stint.file.free", "By", "Part of the file in free pages.")
	r.journal = gauge("stint.journal.size", "By", "Part of the file in the journal.")
	r.journaled = gauge("stint.journal.buckets", "{bucket}", "Buckets whose newest state is in the journal.")
	r.steps = counter("stint.clock.steps", "{step}", "Steps of the wall clock.")
	r.healthy = add(in, m.Int64ObservableGauge, "stint.healthy", "", "1 if the limiter is healthy, else 0.")
	if in.err != nil {
		return nil, in.err
	}
	return m.RegisterCallback(r.observe, in.all...)
}

// instruments are those that add has made, and the errors of those that it could
// not make.
type instruments struct {
	all []metric.Observable
	err error
}

// add makes an instrument. A metric.InstrumentOption is an option of every kind of
// instrument, and so an Opt.
func add[O metric.Observable, Opt any](in *instruments, make func(name string, opts ...Opt) (O, error),
	name, unit, what string) O {
	o, err := make(name, any(metric.WithUnit(unit)).(Opt), any(metric.WithDescription(what)).(Opt))
	in.all, in.err = append(in.all, o), errors.Join(in.err, err)
	return o
}

// reader is the callback of the instruments.
type reader struct {
	source Source
	attrs  []attribute.KeyValue // of each series

	decisions, errors       metric.Int64Observable
	held, waiting, inFlight metric.Int64Observable
	resident, dirty         metric.Int64Observable
	loads, evictions        metric.Int64Observable
	file, free              metric.Int64Observable
	journal, journaled      metric.Int64Observable
	steps, healthy          metric.Int64Observable
	flush, commit           saves

	plain, forward, backward []metric.ObserveOption

	mu     sync.Mutex // guards limits; several readers may collect at once
	limits map[stint.Name]*limitSeries
}

// saves are the instruments of flushes or of commits.
type saves struct {
	saves, failures, buckets metric.Int64Observable
	last, longest            metric.Float64Observable
}

// limitSeries are the series of one limit.
type limitSeries struct {
	label                string
	all, allowed, denied []metric.ObserveOption
}

// with returns the option of a series with attributes.
func (r *reader) with(attrs ...attribute.KeyValue) []metric.ObserveOption {
	set := attribute.NewSet(append(attrs, r.attrs...)...)
	return []metric.ObserveOption{metric.WithAttributeSet(set)}
}

// observe reports the present values.
func (r *reader) observe(_ context.Context, o metric.Observer) error {
	healthy := int64(1)
	if r.source.Health() != nil {
		healthy = 0
	}
	o.ObserveInt64(r.healthy, healthy, r.plain...)
	if lim, ok := r.source.(stint.Decider); ok {
		r.observeInFlight(o, lim)
	}
	if st, ok := r.stats(); ok {
		r.observeStats(o, &st)
	}
	return nil
}

// observeInFlight reports the requests in flight, which each process has of its own.
func (r *reader) observeInFlight(o metric.Observer, lim stint.Decider) {
	running := make(map[stint.Name]int64)
	for of := range rules.InFlightOf(lim) {
		running[of.Key.Name] += of.Running
	}
	limits := r.source.Limits()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range limits.Names() {
		o.ObserveInt64(r.inFlight, running[name], r.seriesLocked(limits, name).all...)
	}
}

// stats returns the counts of this process. It returns false if there are none:
// zeros would look like a restart.
func (r *reader) stats() (stint.Stats, bool) {
	shared, ok := r.source.(*hostlimit.Limiter)
	if !ok {
		st := r.source.Stats()
		return st, st.Err == nil
	}
	if shared.Role() != hostlimit.RoleOwner {
		return stint.Stats{}, false
	}
	st := shared.Stats()
	return st, st.Err == nil && shared.Role() == hostlimit.RoleOwner // still: they are not another process's
}

func (r *reader) observeStats(o metric.Observer, st *stint.Stats) {
	r.observeLimits(o, st.Limits)
	o.ObserveInt64(r.resident, st.Resident, r.plain...)
	o.ObserveInt64(r.dirty, st.Dirty, r.plain...)
	o.ObserveInt64(r.steps, st.Forward, r.forward...)
	o.ObserveInt64(r.steps, st.Backward, r.backward...)
	o.ObserveInt64(r.loads, st.Loads, r.plain...)
	o.ObserveInt64(r.evictions, st.Evictions, r.plain...)
	r.observeSaves(o, &r.flush, &st.Flush)
	r.observeSaves(o, &r.commit, &st.Commit)
	if st.File.Format > 0 {
		o.ObserveInt64(r.file, st.File.Bytes, r.plain...)
		o.ObserveInt64(r.free, st.File.Free, r.plain...)
		o.ObserveInt64(r.journal, st.File.Journal, r.plain...)
		o.ObserveInt64(r.journaled, st.File.Journaled, r.plain...)
	}
}

func (r *reader) observeSaves(o metric.Observer, to *saves, st *stint.SaveStats) {
	o.ObserveInt64(to.saves, st.Saves, r.plain...)
	o.ObserveInt64(to.failures, st.Failures, r.plain...)
	o.ObserveInt64(to.buckets, st.Buckets, r.plain...)
	if st.Saves+st.Failures > 0 {
		o.ObserveFloat64(to.last, st.Last.Seconds(), r.plain...)
		o.ObserveFloat64(to.longest, st.Longest.Seconds(), r.plain...)
	}
}

func (r *reader) observeLimits(o metric.Observer, counts map[stint.Name]stint.LimitStats) {
	held, waiting := make(map[stint.Name]int64), make(map[stint.Name]int64)
	for h := range r.source.Held() {
		waiting[h.Key.Name] += int64(h.Waiting)
		if !h.HeldUntil.IsZero() {
			held[h.Key.Name]++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limits := r.source.Limits()
	for name, c := range counts {
		s := r.seriesLocked(limits, name)
		o.ObserveInt64(r.errors, c.Errors, s.all...)
		if name == stint.Unknown {
			continue // it has errors only
		}
		o.ObserveInt64(r.decisions, c.Allowed, s.allowed...)
		o.ObserveInt64(r.decisions, c.Denied, s.denied...)
		o.ObserveInt64(r.held, held[name], s.all...)
		o.ObserveInt64(r.waiting, waiting[name], s.all...)
	}
}

// seriesLocked returns the series of a limit. A limit that is no longer declared
// keeps its label.
func (r *reader) seriesLocked(limits *stint.Limits, name stint.Name) *limitSeries {
	spec, _ := limits.Spec(name)
	s, label := r.limits[name], spec.Label
	switch {
	case s != nil && (label == s.label || label == ""):
		return s
	case name == stint.Unknown:
		label = undeclared
	case label == "": // declared only before Register
		label = strconv.Itoa(int(name))
	}
	s = &limitSeries{
		label:   label,
		all:     r.with(limitKey.String(label)),
		allowed: r.with(limitKey.String(label), decisionKey.String("allowed")),
		denied:  r.with(limitKey.String(label), decisionKey.String("denied")),
	}
	r.limits[name] = s
	return s
}

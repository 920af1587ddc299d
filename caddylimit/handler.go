package caddylimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler holds requests to zones. A request passes if all of its zones admit
// it, and otherwise no zone spends. It is denied with the error 429, which
// handle_errors can answer. Retry-After and the RateLimit fields are set.
//
// Three placeholders are set: {http.stint.zone}, the zone that decided,
// {http.stint.retry_after}, in seconds and only for a denial, and
// {http.stint.remaining}.
type Handler struct {
	Zones []*Zone `json:"zones,omitempty"`

	// FailOpen lets requests pass if the file fails, instead of answering 503.
	FailOpen bool `json:"fail_open,omitempty"`

	app     *App
	errors  prometheus.Counter
	limited http.Handler // the zones, around a call's next handler
}

// CaddyModule implements caddy.Module.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.stint", New: func() caddy.Module { return new(Handler) }}
}

// Provision implements caddy.Provisioner.
func (h *Handler) Provision(ctx caddy.Context) error {
	if len(h.Zones) == 0 {
		return errors.New("stint: no zone")
	}
	app, err := ctx.App("stint")
	if err != nil {
		return err
	}
	h.app = app.(*App)
	rules := make([]httplimit.Rule, len(h.Zones))
	named := make(map[string]bool)
	for i, z := range h.Zones {
		if named[z.Name] {
			return fmt.Errorf("zone %s stands twice in one place: a request would spend twice from it", z.Name)
		}
		named[z.Name] = true
		if err := z.provision(ctx); err != nil {
			return err
		}
		if err := z.validate(); err != nil {
			return err
		}
		if err := h.app.register(z); err != nil {
			return err
		}
		z.counters(h.app.metrics)
		rules[i] = z.rule()
	}
	h.errors = h.app.metrics.WithLabelValues("", "error")
	h.app.onStart = append(h.app.onStart, func(lim *hostlimit.Limiter) { h.limit(lim, rules) })
	return nil
}

// limit puts the rules of the zones in front of the next handler.
func (h *Handler) limit(lim stint.Decider, rules []httplimit.Rule) {
	h.limited = httplimit.Middleware(lim, &httplimit.Options{
		FailOpen: h.FailOpen,
		Denied:   denied,
		Observers: []httplimit.Observer{{
			Decisions: h.observe,
			Error:     func(*http.Request, error) { h.errors.Inc() }, // the log of the requests has them, too
		}},
	}, rules...)(http.HandlerFunc(next))
}

// A call is one request on its way through a Handler, and the context of that
// request.
type call struct {
	context.Context
	next caddyhttp.Handler
	err  error // of next, or the denial

	first verdict
	about *verdict // of all Handlers around the request: first, or that of an outer call
}

// A verdict is the strictest decision about a request.
type verdict struct {
	zone     *Zone
	decision stint.Decision
}

type callKey struct{}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

func callOf(r *http.Request) *call { return r.Context().Value(callKey{}).(*call) }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if err := h.app.wait(r.Context()); err != nil {
		return err
	}
	c := &call{Context: r.Context(), next: next}
	if outer, ok := r.Context().Value(callKey{}).(*call); ok {
		c.about = outer.about
	} else {
		c.about = &c.first
		replacerOf(r).Map(c.about.placeholder)
	}
	h.limited.ServeHTTP(w, r.WithContext(c))
	return c.err
}

// next runs the rest of Caddy's chain. Its handlers report failures as errors,
// and Caddy writes their status later.
func next(w http.ResponseWriter, r *http.Request) {
	c := callOf(r)
	c.err = c.next.ServeHTTP(w, r)
	if c.err != nil {
		status := http.StatusInternalServerError
		if failed := (caddyhttp.HandlerError{}); errors.As(c.err, &failed) && failed.StatusCode != 0 {
			status = failed.StatusCode
		}
		httplimit.SetStatus(r, status)
	}
}

// denied makes the denial an error, as Caddy's handlers do.
func denied(_ http.ResponseWriter, r *http.Request, _ stint.Decision) {
	c := callOf(r)
	c.err = caddyhttp.Error(http.StatusTooManyRequests, fmt.Errorf("zone %s denies the request", c.about.zone.Name))
}

// observe passes decisions to the status pages, and counts them, by zone and
// result only: a label with the key would grow without bound. It notes the
// strictest one for the placeholders. A zone with CountStatus decides twice about a
// request that it admits, and only the second decision, which spends, is counted.
func (h *Handler) observe(r *http.Request, ds []rules.Decision) {
	for _, page := range h.app.pages {
		page.Decisions(r, ds)
	}
	v := callOf(r).about
	for i := range ds {
		d := &ds[i]
		z := h.zone(d.RuleKey.Name)
		if !d.Allowed || !d.After {
			z.count(d).Inc()
		}
		if !d.Shadow && (v.zone == nil || d.Stricter(&v.decision)) {
			v.zone, v.decision = z, d.Decision
		}
	}
}

func (h *Handler) zone(number stint.Name) *Zone {
	for _, z := range h.Zones {
		if z.number == number {
			return z
		}
	}
	panic("caddylimit: a decision of no zone")
}

func (v *verdict) placeholder(name string) (value any, ok bool) {
	name, ok = strings.CutPrefix(name, "http.stint.")
	if !ok || v.zone == nil {
		return nil, false
	}
	switch d := &v.decision; name {
	case "zone":
		return v.zone.Name, true
	case "remaining":
		return d.Remaining, true
	case "retry_after":
		if !d.Allowed && d.RetryAfter < math.MaxInt64 { // which is for ever
			return max(1, int64((d.RetryAfter+time.Second-1)/time.Second)), true
		}
	}
	return nil, false
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)

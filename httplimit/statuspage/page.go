package statuspage

import (
	"cmp"
	"encoding/json"
	"iter"
	"net/http"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/status"
	"github.com/stint-go/stint/rules"
)

// Options configure a Page. The zero value allows the least.
type Options struct {
	Title   string        // default "Limits"
	Refresh time.Duration // how often the page reloads; default 5 s, at least 1 s

	// HideIDs replaces each id by six hexadecimal digits, which stay the same
	// until the program ends. It leaves out the search and the texts of errors.
	HideIDs bool
}

// Limiter is what a Page shows: a *stint.Limiter, or a *hostlimit.Limiter.
type Limiter interface {
	stint.Decider
	Durability() stint.Durability
	Health() error
	Held() iter.Seq[stint.Held]
	Stats() stint.Stats
}

// A Page is an http.Handler that shows what the limits of a Limiter do.
type Page struct {
	lim       Limiter
	opts      Options
	collector *status.Collector
}

// New returns a page about a Limiter. Nil options mean the defaults. It panics
// if there is no Limiter.
//
// The page has the buckets that are held, and until when. It has each limit,
// with a chart of its decisions in the last five minutes, the buckets nearest to
// their limit and those denied most often. It also has the flushes, the size of
// the file, and the Limiter's health. A search finds the buckets of an id.
// ?format=json has the same for programs, as the package documentation says.
// ?format=prometheus has counters for each limit.
//
// The chart counts every decision of the Limiter. For decisions that the page
// observes, it is exact to a second. The others are spread evenly over the time since
// the last sample. A sample is taken by each view of the page, and by the observer at
// most once a second.
//
// The page counts requests and decisions, which differ: the package documentation says
// how. The list of the buckets that are denied most is of requests, without those of
// Shadow rules.
//
// lim is a *stint.Limiter, or a *hostlimit.Limiter: then the page shows the
// buckets and the counts that all processes share, under the limits of this one.
// The counts begin anew when another process takes the file over.
//
// The page changes nothing. It shows ids, so serve it only to operators. The command
// stint resets and holds buckets.
func New(lim Limiter, opts *Options) *Page {
	if lim == nil {
		panic("statuspage: New: no limiter")
	}
	p := &Page{lim: lim}
	if opts != nil {
		p.opts = *opts
	}
	p.collector = status.NewCollector(lim, p.opts.HideIDs)
	p.opts.Title = cmp.Or(p.opts.Title, "Limits")
	p.opts.Refresh = max(cmp.Or(p.opts.Refresh, 5*time.Second), time.Second)
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Query().Get("format") {
	case "", "html":
		p.writeHTML(w, r)
	case "json":
		h.Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.Encode(p.collector.Report()) // the client may have disconnected
	case "prometheus":
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		p.collector.Report().WritePrometheus(w) // the client may have disconnected
	default:
		http.Error(w, "Unknown format: want html, json or prometheus.", http.StatusBadRequest)
	}
}

// Observer returns the observer that passes decisions to the page, for
// httplimit.Options.Observers. Several middlewares may share it. A call takes
// less than a microsecond. Once a second one call also reads Limiter.Stats,
// while the others go on.
func (p *Page) Observer() httplimit.Observer {
	p.collector.Observes()
	return httplimit.Observer{
		Decisions: func(_ *http.Request, ds []rules.Decision) { p.collector.Observe(ds) },
		Error:     func(*http.Request, error) { p.collector.ObserveError() },
	}
}

package statuspage

import (
	"cmp"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// Options configure a Page. The zero value allows the least.
type Options struct {
	Title   string        // default "Limits"
	Refresh time.Duration // how often the page reloads; default 5 s, at least 1 s

	// HideIDs replaces each id by six hexadecimal digits, which stay the same
	// until the program ends. It leaves out the search and the texts of errors.
	HideIDs bool

	// AllowReset lets everyone who sees the page refill a bucket, hold it and
	// end its hold. The page asks first. The Limiter then needs the method Reset of a
	// *stint.Limiter, too.
	AllowReset bool
}

// Limiter is what a Page shows: a *stint.Limiter, or a *hostlimit.Limiter.
type Limiter interface {
	stint.Decider
	Durability() stint.Durability
	Health() error
	Held() iter.Seq[stint.Held]
	Stats() stint.Stats
}

// resetter is what the page needs to refill buckets, too.
type resetter interface{ Reset(keys ...stint.Key) error }

// A Page is an http.Handler that shows what the limits of a Limiter do.
type Page struct {
	lim     Limiter
	resets  resetter // nil if lim has no such method
	opts    Options
	secret  []byte      // of the digits that stand for ids
	sealer  cipher.AEAD // of tokens
	origin  *http.CrossOriginProtection
	started time.Time

	sampling sync.Mutex // guards the next three; mu may be taken while it is held
	before   map[stint.Name]stint.LimitStats
	charts   map[stint.Name]*series
	made     *report // the last report

	mu       sync.Mutex // guards the rest; requests wait for it
	looked   time.Time  // time of the sample in before; sampling is held to write it
	observed map[stint.Name]*observed
}

// observed is what the page has observed of one limit.
type observed struct {
	spent, denied  topK
	shadow         bool             // Shadow rules have denied
	early          stint.LimitStats // in the second after Page.looked
	inFlightReport                  // peaks and denials
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
// observes, it is exact to a second. The others, and the first one after an
// idle time, are spread evenly over the time since the last sample. A sample
// is taken by each view of the page, and by the observer at most once a second.
//
// Denials by Shadow rules are counted as denials, and the page says so. The
// list of the buckets that are denied most leaves them out.
//
// lim is a *stint.Limiter, or a *hostlimit.Limiter: then the page shows the
// buckets and the counts that all processes share, under the limits of this one.
// The counts begin anew when another process takes the file over.
//
// The page shows ids, and may reset and hold buckets. Serve it only to operators
// who may do that.
func New(lim Limiter, opts *Options) *Page {
	if lim == nil {
		panic("statuspage: New: no limiter")
	}
	resets, _ := lim.(resetter)
	if opts != nil && opts.AllowReset && resets == nil {
		panic("statuspage: New: AllowReset, and a Limiter without Reset")
	}
	p := &Page{
		lim:      lim,
		resets:   resets,
		secret:   make([]byte, 32),
		sealer:   newSealer(),
		origin:   http.NewCrossOriginProtection(),
		started:  lim.Now(),
		before:   lim.Stats().Limits,
		charts:   make(map[stint.Name]*series),
		observed: make(map[stint.Name]*observed),
	}
	if opts != nil {
		p.opts = *opts
	}
	p.opts.Title = cmp.Or(p.opts.Title, "Limits")
	p.opts.Refresh = max(cmp.Or(p.opts.Refresh, 5*time.Second), time.Second)
	rand.Read(p.secret) // never fails
	p.looked = p.started
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		p.act(w, r)
		return
	default:
		h.Set("Allow", "GET, HEAD, POST")
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
		e.Encode(p.report()) // the client may have disconnected
	case "prometheus":
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		prometheusTemplate.Execute(w, p.report()) // the client may have disconnected
	default:
		http.Error(w, "Unknown format: want html, json or prometheus.", http.StatusBadRequest)
	}
}

// errorText returns the text of an error, unless ids are hidden.
func (p *Page) errorText(err error) string {
	if p.opts.HideIDs {
		return "the error may name ids, which this page hides"
	}
	return err.Error()
}

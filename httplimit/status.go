package httplimit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// StatusOptions are what StatusHandler can be told; nil or the zero value means the defaults, which are the safe ones.
type StatusOptions struct {
	Title   string        // default "Limits"
	Refresh time.Duration // how often the page loads itself again; default 5s, never more often than each second
	HideIDs bool          // show ids as a few digits, which tell them apart until the program ends, and no text of errors

	// AllowReset lets whoever sees the page make buckets full, and end their holds.
	AllowReset bool

	// AllowSnapshot lets whoever sees the page take a copy of the whole file with ?format=snapshot: for backups, and for
	// "stint list --snapshot URL" while the program has the file locked. It tells all ids, HideIDs or not, and each copy costs
	// the disk the size of the file: one is made at a time.
	AllowSnapshot bool
}

// StatusPage is a page about a Limiter, for its operator. It is made by StatusHandler.
type StatusPage struct {
	lim    *stint.Limiter
	opts   StatusOptions
	secret []byte // of tokens

	copying sync.Mutex // held by who takes a snapshot
	origin  *http.CrossOriginProtection

	started time.Time

	looking sync.Mutex // held by who takes a sample or makes a report, and guards what follows; mu may be taken within
	before  map[stint.Name]stint.LimitStats
	series  map[stint.Name]*series
	limits  *stint.Limits // those that names and overrides are of
	names   stint.Names
	over    map[stint.Name]int // overrides
	made    *report            // for those who ask again within a second
	madeAt  time.Time

	mu     sync.Mutex // guards what follows, and is held for moments only: requests wait for it
	looked time.Time  // when before was; it is set by who has looking too
	spent  map[stint.Name]*lately
	denied map[stint.Name]*lately

	// What Observe was told of: in the second after looked, and whether Shadow rules have denied.
	told   map[stint.Name]*stint.LimitStats
	shadow map[stint.Name]bool
}

// StatusHandler returns a page that shows each limit, its decisions per second over the last five minutes, the buckets
// nearest to their limit and those denied most often, the flushes, the size of the file and whether all is well. It
// needs nothing from elsewhere, no script, and no scan of the buckets: what it knows of them it is told by the
// middleware whose Options.OnDecision is its Observe.
//
// The chart is of all decisions of the Limiter, and is certain of how many. It is certain of when, to within a second, of those
// that Observe is told of; but for the first after a silence, they and all others are spread evenly over the time since
// the Limiter was last looked at: by Observe, at most once a second, or by a view of the page. What Shadow rules deny is counted
// as denied, in the chart too, and the page says so; the buckets that are denied most often are those of other rules.
//
// With ?format=json it is for machines; with ?format=prometheus, counters per limit in Prometheus' text format; with
// ?format=snapshot, if AllowSnapshot is set, a copy of the file.
//
// The page tells ids, lets buckets be reset if AllowReset is set, and copies of the file be taken if AllowSnapshot is: it is
// for those who may know and do that. Serve it behind whatever keeps others out.
func StatusHandler(lim *stint.Limiter, opts *StatusOptions) *StatusPage {
	if lim == nil {
		panic("httplimit: StatusHandler: no limiter")
	}
	s := &StatusPage{
		lim:    lim,
		secret: make([]byte, 32),
		origin: http.NewCrossOriginProtection(),
		series: make(map[stint.Name]*series),
		told:   make(map[stint.Name]*stint.LimitStats),
		spent:  make(map[stint.Name]*lately),
		denied: make(map[stint.Name]*lately),
		shadow: make(map[stint.Name]bool),
	}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Title == "" {
		s.opts.Title = "Limits"
	}
	if s.opts.Refresh == 0 {
		s.opts.Refresh = 5 * time.Second
	}
	s.opts.Refresh = max(s.opts.Refresh, time.Second)
	rand.Read(s.secret) // never fails
	s.started = lim.Now()
	s.looked, s.before = s.started, lim.Stats().Limits
	return s
}

// Observe takes note of decisions: it is an Options.OnDecision. It remembers a bounded number of buckets, and is cheap, but that
// once a second one of those who call it asks for Limiter.Stats, while the others go on.
func (s *StatusPage) Observe(_ *http.Request, ds []Decision) {
	now := s.lim.Now()
	if s.note(now, ds) && s.looking.TryLock() {
		s.sampleLocked(now, s.lim.Stats().Limits)
		s.looking.Unlock()
	}
}

// note tallies decisions, and reports whether a sample is due.
func (s *StatusPage) note(now time.Time, ds []Decision) (due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = now.Sub(s.looked) >= time.Second
	for i := range ds {
		d := &ds[i]
		name := d.Key.Name
		switch {
		case d.Allowed && d.After:
			continue
		case d.Allowed:
			of(s.spent, name).add(now, d.Key, d.Cost)
		default:
			of(s.spent, name).add(now, d.Key, 0)
			if d.Shadow {
				s.shadow[name] = true
			} else {
				of(s.denied, name).add(now, d.Key, 1)
			}
		}
		if due {
			continue
		}
		if told := of(s.told, name); d.Allowed {
			told.Allowed++
		} else {
			told.Denied++
		}
	}
	return due
}

// sampleLocked takes the Limiter's counts for the chart, at most once a second. It may be long since the last time: what
// Observe was told of was in the second after that, and the rest at any time since.
func (s *StatusPage) sampleLocked(now time.Time, counts map[stint.Name]stint.LimitStats) {
	from := s.looked
	if now.Sub(from) < time.Second {
		return
	}
	s.mu.Lock()
	told := s.told
	s.looked, s.told = now, make(map[stint.Name]*stint.LimitStats)
	s.mu.Unlock()
	for name, c := range counts {
		before, t, chart := s.before[name], of(told, name), of(s.series, name)
		allowed, denied := c.Allowed-before.Allowed, c.Denied-before.Denied
		soonAllowed, soonDenied := min(t.Allowed, allowed), min(t.Denied, denied) // Observe is told of checks too
		chart.add(from, from.Add(time.Second), soonAllowed, soonDenied)
		chart.add(from, now, allowed-soonAllowed, denied-soonDenied)
	}
	s.before = counts
}

// of returns what there is for a name, and makes it where there is nothing.
func of[T any](m map[stint.Name]*T, name stint.Name) *T {
	v := m[name]
	if v == nil {
		v = new(T)
		m[name] = v
	}
	return v
}

// ServeHTTP implements http.Handler.
func (s *StatusPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		s.reset(w, r)
		return
	default:
		h.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Query().Get("format") {
	case "", "html":
		s.writePage(w, r, s.report())
	case "json":
		h.Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.Encode(s.report()) // the client may have gone
	case "prometheus":
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		writePrometheus(w, s.report())
	case "snapshot":
		s.snapshot(w, r)
	default:
		http.Error(w, "The format is html, json or prometheus.", http.StatusBadRequest)
	}
}

// snapshot sends a copy of the file. What fails half way ends the connection: the copy must not pass for a whole one.
func (s *StatusPage) snapshot(w http.ResponseWriter, r *http.Request) {
	if !s.opts.AllowSnapshot {
		http.Error(w, "This page gives no copies of the file.", http.StatusForbidden)
		return
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		http.Error(w, "Another page may not ask for copies of the file.", http.StatusForbidden)
		return
	}
	if !s.copying.TryLock() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "Another copy is being made: try again when it is done.", http.StatusServiceUnavailable)
		return
	}
	defer s.copying.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="stint.db"`)
	if r.Method == http.MethodHead {
		return
	}
	if n, err := s.lim.Snapshot(w); err != nil {
		if n > 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Del("Content-Disposition")
		http.Error(w, "The file could not be copied: "+err.Error(), http.StatusServiceUnavailable)
	}
}

// reset makes a bucket full that the page shows.
func (s *StatusPage) reset(w http.ResponseWriter, r *http.Request) {
	if !s.opts.AllowReset {
		http.Error(w, "This page does not reset buckets.", http.StatusForbidden)
		return
	}
	if err := s.origin.Check(r); err != nil {
		http.Error(w, "This was not asked for by the page itself.", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<12)
	key, ok := s.shown(r.PostFormValue("reset"))
	if !ok {
		http.Error(w, "The page does not show that bucket any more.", http.StatusNotFound)
		return
	}
	if err := s.lim.Reset(key); err != nil {
		http.Error(w, "The bucket could not be reset: "+s.textOf(err), http.StatusServiceUnavailable)
		return
	}
	s.looking.Lock()
	s.made = nil
	s.looking.Unlock()
	w.Header().Set("Location", "?")
	w.WriteHeader(http.StatusSeeOther)
}

// textOf returns what an error says, if that may be shown.
func (s *StatusPage) textOf(err error) string {
	if s.opts.HideIDs {
		return "the error may name ids, which this page hides"
	}
	return err.Error()
}

// shown returns the bucket with a token, of those that are tallied.
func (s *StatusPage) shown(token string) (stint.Key, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.lim.Now()
	for _, of := range []map[stint.Name]*lately{s.denied, s.spent} {
		for _, l := range of {
			for _, c := range l.counts(now) {
				if hmac.Equal([]byte(s.token(c.key)), []byte(token)) {
					return c.key, true
				}
			}
		}
	}
	return stint.Key{}, false
}

// token stands for a bucket, without telling its id.
func (s *StatusPage) token(key stint.Key) string {
	h := hmac.New(sha256.New, s.secret)
	h.Write([]byte(key.String()))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

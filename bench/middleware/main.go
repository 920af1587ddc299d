// Command middleware compares the HTTP middleware of stint with that of other
// libraries: what a request costs, beside one without a limit.
//
//	go run ./middleware [-rounds 9] [-turn 100ms] [-results FILE]
//
// Each limits by the address of the peer, in memory, and sends the fields that it
// sends by default. All get the same requests, without a network. Each runs in a
// process of its own, and they take turns: a figure is the median of its rounds. A
// run ends with an error if not all requests were allowed, or denied.
//
// The state of a bucket changes with each request. A limit of a few addresses refills
// fast enough that its values come again, as those of a limit do that most clients are
// far from. That of many refills so slowly that no bucket becomes full, because a full
// one is forgotten.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/didip/tollbooth/v7"
	tollboothlimiter "github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	golimiter "github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/bench/turns"
	"github.com/stint-go/stint/httplimit"
)

// perAddress is the limit of stint.
const perAddress stint.Name = 1

// A contestant makes middleware that admits n requests of an address in a period.
type contestant struct {
	name string
	wrap func(n int, period time.Duration, next http.Handler) http.Handler
}

var contestants = []contestant{
	{"the least", func(n int, period time.Duration, next http.Handler) http.Handler {
		lim := inMemory(n, period)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			addr, err := netip.ParseAddrPort(r.RemoteAddr)
			must(err)
			d, err := lim.Spend(perAddress.IP(addr.Addr()), 1)
			must(err)
			h := w.Header()
			h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(d.Remaining, 10)}
			h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(int64(d.ResetAfter/time.Second), 10)}
			if !d.Allowed {
				http.Error(w, "Too Many Requests", http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}},
	{"stint", func(n int, period time.Duration, next http.Handler) http.Handler {
		return byAddress(inMemory(n, period), next)
	}},
	{"stint flushed", func(n int, period time.Duration, next http.Handler) http.Handler {
		return byAddress(inFile(n, period), next)
	}},
	{"go-limiter", func(n int, period time.Duration, next http.Handler) http.Handler {
		store, err := memorystore.New(&memorystore.Config{Tokens: uint64(n), Interval: period})
		must(err)
		m, err := golimiter.NewMiddleware(store, golimiter.IPKeyFunc())
		must(err)
		return m.Handle(next)
	}},
	{"httprate", func(n int, period time.Duration, next http.Handler) http.Handler {
		return httprate.LimitBy(n, period, func(r *http.Request) (string, error) { // as its KeyByIP, which is deprecated
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			return httprate.CanonicalizeIP(host), err
		})(next)
	}},
	{"throttled", func(n int, period time.Duration, next http.Handler) http.Handler {
		store, err := memstore.NewCtx(0) // with a bound it forgets denied addresses
		must(err)
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
			MaxRate: throttled.PerDuration(n, period), MaxBurst: n - 1})
		must(err)
		l.SetMaxCASAttemptsLimit(1000)
		return (&throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{RemoteAddr: true}}).RateLimit(next)
	}},
	{"ulule", func(n int, period time.Duration, next http.Handler) http.Handler {
		return stdlib.NewMiddleware(ulule.New(ululememory.NewStore(), ulule.Rate{Period: period, Limit: int64(n)})).Handler(next)
	}},
	{"tollbooth", func(n int, period time.Duration, next http.Handler) http.Handler {
		l := tollbooth.NewLimiter(float64(n)/period.Seconds(), &tollboothlimiter.ExpirableOptions{})
		return tollbooth.LimitHandler(l.SetBurst(n).SetIPLookups([]string{"RemoteAddr"}), next)
	}},
}

func byAddress(lim *stint.Limiter, next http.Handler) http.Handler {
	return httplimit.Middleware(lim, nil, httplimit.Rule{Key: httplimit.ByIP(perAddress)})(next)
}

// inMemory returns a Limiter that saves nothing before Close, like the peers.
func inMemory(n int, period time.Duration) *stint.Limiter {
	lim, err := stint.New(stint.NewMemStore(), limitsOf(n, period), &stint.Options{Durability: stint.Memory})
	must(err)
	return lim
}

// inFile returns a Limiter that saves each second, to a file in a temporary folder.
func inFile(n int, period time.Duration) *stint.Limiter {
	dir, err := os.MkdirTemp("", "middleware")
	must(err)
	lim, err := stint.Open(filepath.Join(dir, "limits.db"), limitsOf(n, period), nil)
	must(err)
	return lim
}

func limitsOf(n int, period time.Duration) *stint.Limits {
	limits, err := stint.NewLimits(stint.Names{perAddress: {
		Label: "requests", IDs: stint.IPAddress, Limit: stint.Limit{Burst: int64(n), Count: int64(n), Period: period},
	}})
	must(err)
	return limits
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// discard is a ResponseWriter without a network.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// A caller sends requests of random addresses, one after the other.
type caller struct {
	h         http.Handler
	addresses []string
	rng       *rand.Rand
	r         *http.Request
	w         discard
	read      byte // so that the compiler does not leave out that run reads the addresses
}

func newCaller(h http.Handler, addresses []string, seed uint64) *caller {
	r, err := http.NewRequest("GET", "http://example.com/", nil)
	must(err)
	return &caller{h: h, addresses: addresses, rng: rand.New(rand.NewPCG(seed, 1)), r: r, w: discard{header: make(http.Header)}}
}

func (c *caller) ask(address string) (status int) {
	c.r.RemoteAddr, c.w.status = address, http.StatusOK
	clear(c.w.header)
	c.h.ServeHTTP(&c.w, c.r)
	return c.w.status
}

// newCallers returns n callers whose objects share no cache line. In a server the objects
// of a request come from memory of the processor that serves it; objects that are made
// one after the other by one goroutine lie side by side. So only each 64th caller is used.
func newCallers(n int, h http.Handler, addresses []string) (callers []*caller) {
	for i := range 64 * n {
		if c := newCaller(h, addresses, uint64(i)); i%64 == 0 {
			callers = append(callers, c)
		}
	}
	return callers
}

// run asks for a while. It returns how many requests it sent, and how long they took
// without the choice of their addresses. All must be answered with the status.
//
// A server has just written the address of a request. Here addresses lie in a long list,
// so run reads both ends of each one before the requests whose time counts.
func (c *caller) run(length time.Duration, want int) (n int, took time.Duration) {
	var next [128]string
	for begun := time.Now(); time.Since(begun) < length; n += len(next) {
		for i := range next {
			next[i] = c.addresses[c.rng.IntN(len(c.addresses))]
			c.read += next[i][0] + next[i][len(next[i])-1]
		}
		asked := time.Now()
		for _, address := range next {
			if status := c.ask(address); status != want {
				panic(fmt.Sprintf("%d, want %d", status, want))
			}
		}
		took += time.Since(asked)
	}
	return n, took
}

// A server is a contestant with its limit and the addresses that it knows.
type server struct {
	handler   http.Handler
	addresses []string
	status    int               // of every answer
	callers   map[int][]*caller // by their number
}

// newServer returns a server to which each of n addresses has sent one request.
func newServer(c contestant, allowed bool, n int) *server {
	limit, period, status := 1, 24*time.Hour, http.StatusTooManyRequests
	if allowed {
		limit, period, status = 100_000, time.Second, http.StatusOK
		if n > 100_000 {
			limit, period = 1000, 24*time.Hour
		}
	}
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s := &server{c.wrap(limit, period, next), addressesOf(n), status, make(map[int][]*caller)}
	first := newCaller(s.handler, nil, 1)
	for _, address := range s.addresses {
		first.ask(address) // spends the only token, if the rest is denied
	}
	runtime.GC()
	return s
}

// A turn is what a server's requests cost for a while.
type turn struct{ NS, Allocs, Bytes float64 }

// turn lets callers ask for a while.
func (s *server) turn(threads int, length time.Duration) turn {
	callers := s.callers[threads]
	if callers == nil {
		callers = newCallers(threads, s.handler, s.addresses)
		s.callers[threads] = callers
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	counts, times := make([]int, threads), make([]time.Duration, threads)
	var all sync.WaitGroup
	for i, c := range callers {
		all.Go(func() { counts[i], times[i] = c.run(length, s.status) })
	}
	all.Wait()
	runtime.ReadMemStats(&after)
	n, took := 0.0, time.Duration(0)
	for i := range callers {
		n += float64(counts[i])
		took += times[i]
	}
	if n == 0 {
		return turn{}
	}
	return turn{float64(took) / n, float64(after.Mallocs-before.Mallocs) / n, float64(after.TotalAlloc-before.TotalAlloc) / n}
}

func median(all []turn, of func(turn) float64) float64 {
	var values []float64
	for _, t := range all {
		values = append(values, of(t))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// addressesOf returns the addresses of n peers, with ports.
func addressesOf(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%d.%d.%d.%d:%d", 11+i>>24, i>>16&255, i>>8&255, i&255, 1024+i*7919%60000)
	}
	return all
}

func main() {
	if args, ok := turns.Args(); ok {
		serve(args)
		return
	}
	runtime.LockOSThread() // contestants end with the thread that started them
	rounds := flag.Int("rounds", 9, "rounds of each row")
	length := flag.Duration("turn", 100*time.Millisecond, "how long a turn takes")
	results := flag.String("results", "", "also write the table to this `file`")
	only := flag.String("only", "", "names of `contestants`, with commas between them")
	ids := flag.String("ids", "1000,1000000", "numbers of addresses")
	flag.Parse()
	var table strings.Builder
	fmt.Fprintf(&table, "ns a request, in one goroutine's time (allocations, bytes); %s, %d rounds of %v\n\n", runtime.Version(), *rounds, *length)
	fmt.Fprintf(&table, "| outcome | addresses | threads |")
	var all []contestant
	for _, c := range contestants {
		if *only == "" || slices.Contains(strings.Split(*only, ","), c.name) {
			all = append(all, c)
			fmt.Fprintf(&table, " %s |", c.name)
		}
	}
	fmt.Fprintf(&table, " fastest peer ÷ stint |\n|---|---|---|%s---|\n", strings.Repeat("---|", len(all)))
	fmt.Print(table.String())
	for _, outcome := range []string{"allowed", "denied"} {
		for _, text := range strings.Split(*ids, ",") {
			n, err := strconv.Atoi(text)
			must(err)
			for _, row := range rows(all, outcome, n, *rounds, *length) {
				fmt.Println(row)
				fmt.Fprintln(&table, row)
			}
		}
	}
	if *results != "" {
		must(os.WriteFile(*results, []byte(table.String()), 0o644))
	}
}

// rows measures all contestants with one and two threads.
func rows(all []contestant, outcome string, n, rounds int, length time.Duration) (rows []string) {
	processes := make([]*turns.Process, len(all))
	for i, c := range all {
		processes[i] = start(c.name, outcome, n)
		defer processes[i].End()
	}
	for threads := 1; threads <= 2; threads++ {
		measured := make([][]turn, len(all))
		for round := range rounds + 1 {
			for i, p := range processes {
				var t turn
				must(p.Ask(order{threads, length}, &t))
				if round > 0 {
					measured[i] = append(measured[i], t)
				}
			}
		}
		row := fmt.Sprintf("| %s | %d | %d |", outcome, n, threads)
		ours, fastest := 0.0, 0.0
		for i, c := range all {
			ns := median(measured[i], func(t turn) float64 { return t.NS })
			row += fmt.Sprintf(" %.0f (%.0f, %.0f) |", ns, median(measured[i], func(t turn) float64 { return t.Allocs }),
				median(measured[i], func(t turn) float64 { return t.Bytes }))
			switch {
			case c.name == "stint":
				ours = ns
			case !strings.HasPrefix(c.name, "stint") && c.name != "the least" && (fastest == 0 || ns < fastest):
				fastest = ns
			}
		}
		rows = append(rows, fmt.Sprintf("%s %.2f |", row, fastest/ours))
	}
	return rows
}

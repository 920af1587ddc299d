// Command llmproxy is a reverse proxy for an OpenAI-compatible API. It holds
// each key to tokens a minute, tokens a month and requests at the same time. A
// request spends an upper bound of its tokens, and the usage that the API
// reports replaces it.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

const (
	perMinute stint.Name = 1 + iota // tokens
	perMonth                        // tokens
)

// inFlight is how many requests of a key may run at the same time.
const inFlight = 8

func limits() (*stint.Limits, error) {
	month := stint.EachMonth(1_000_000, time.UTC)
	month.Durability = stint.Leased // tokens that cost money survive a crash
	minute := stint.PerMinute(20_000)
	minute.Durability = stint.Leased
	return stint.NewLimits(stint.Names{
		perMinute: {Label: "tokens-per-minute"},
		perMonth:  {Label: "tokens-per-month"},
	}.WithLimits(map[stint.Name]stint.Limit{perMinute: minute, perMonth: month}))
}

// accounts has the account of each key. A real proxy reads them from elsewhere.
var accounts = map[string]string{"sk-alice": "alice", "sk-bob": "bob"}

// account finds the account of a request, so that a made-up key has no bucket.
func account(r *http.Request) (string, bool) {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	id, ok := accounts[key]
	return id, ok
}

func byAccount(name stint.Name) httplimit.KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		id, ok := account(r)
		if !ok {
			return stint.Key{}, rules.ErrNoID
		}
		return name.Key(id), nil
	}
}

// newProxy returns the proxy in front of an API.
func newProxy(lim stint.Decider, upstream *url.URL) http.Handler {
	rule := func(name stint.Name) httplimit.Rule {
		return httplimit.Rule{
			Key: byAccount(name), CostFunc: bound, Settle: true,
			Refund: func(status int) bool { return status >= 400 }, // such requests cost nothing
		}
	}
	minute, month := rule(perMinute), rule(perMonth)
	minute.InFlight = inFlight
	limited := httplimit.Middleware(lim, nil, minute, month)

	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(upstream)
			p.Out.Header.Del("Accept-Encoding") // usage is read from the plain answer
		},
		FlushInterval:  -1, // each event at once
		ModifyResponse: settleAtEnd,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := account(r); !ok {
			http.Error(w, `{"error":{"message":"unknown API key"}}`, http.StatusUnauthorized)
			return
		}
		r, err := readCall(w, r)
		if err != nil {
			http.Error(w, `{"error":{"message":"the body is no JSON object, or over 1 MiB"}}`, http.StatusBadRequest)
			return
		}
		limited(proxy).ServeHTTP(w, r)
	})
}

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", "127.0.0.1:8080", "address of the proxy")
	upstream := flag.String("upstream", "", "URL of the API; the default is a fake one in this program")
	db := flag.String("db", "llmproxy.db", "file of the buckets")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *upstream, *db); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, upstream, db string) error {
	if upstream == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		go http.Serve(l, http.HandlerFunc(fake))
		upstream = "http://" + l.Addr().String()
	}
	to, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	ls, err := limits()
	if err != nil {
		return err
	}
	lim, err := stint.Open(db, ls, nil)
	if err != nil {
		return err
	}
	srv := &http.Server{Addr: listen, Handler: newProxy(lim, to), ReadHeaderTimeout: 10 * time.Second}
	log.Printf("http://%s forwards to %s", listen, to)
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		short, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = srv.Shutdown(short)
	}
	return errors.Join(err, lim.Close())
}

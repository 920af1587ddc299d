package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// A Transport is an http.RoundTripper that keeps a client within a quota. It
// also stays away from a server for as long as a response asks. Both last
// across runs of the program, in the Limiter's file. Close the Limiter before
// the program exits.
//
// # What a response asks
//
// If Backoff returns a time, only that counts. Otherwise the longest of these
// counts:
//
//   - Retry-After, and retry-after-ms of some APIs, with any status from 400 on. With
//     a redirect they count if the method of the request is idempotent, such as GET:
//     the client that follows the redirect waits, too. With other statuses, such as
//     202, they are about something else.
//   - In a response of any status, the time of each quota that has nothing left: t of
//     a RateLimit policy with r=0, and the Reset beside a Remaining under 1. A quota
//     with something left does not count, nor does one with a Remaining under 0 or a
//     Limit of 0 in a response with a status under 400: that has no limit.
//
// docs/agents.md lists the fields that are read, among them those of LLM APIs. A time
// may be seconds, with a fraction or without, a duration such as 7m12s, a Unix time, or
// a date of RFC 9110 or RFC 3339. Of several Retry-After, joined to a list or not, the
// longest counts.
//
// If a 429 has none of these, but a Reset without a Remaining, it asks for that
// Reset. If Retry-After and the Reset differ by a thousand times or more, one of them
// may be in milliseconds: the shorter counts, and OnError is called. Times are compared to the server's clock, if the response has a Date.
//
// A refusal is a 429, or a 403 that has Retry-After or a field with nothing
// left. If it gives no time, or one that is over or malformed, the client stays
// away for a second. The next refusal of that kind doubles the time, up to an
// hour or MaxHold. A response with a status under 400 ends the doubling, and
// the tokens that came back in these waits are spent. The client then sends its
// requests at the pace of the limit, instead of another burst. The end of the
// program ends the doubling too.
//
// # Which limit
//
// The limit may be the API's quota, such as stint.PerHour(5000). The client
// then uses at least 95 % of it, if its period is 20 seconds or more. A server
// that counts fixed windows or tokens refuses at most one request in each
// window after the first. If several requests are under way at the same time,
// it may refuse each of them. A server that counts the last hour, and sends
// only Retry-After, may refuse a few more requests.
//
// With stint.WithinWindow(5000, time.Hour) a server refuses no request,
// whichever kind of window it counts, if all requests take the same time to
// reach it. If that time varies, it may refuse one at the end of a window. The
// price is that a burst is at most one token more than a fiftieth of the quota.
// Use it if the server punishes refusals.
//
// A request spends its tokens before it is sent. They are returned if the
// request never had a connection: dialling or TLS failed, or the request was
// cancelled before that. After any other error they stay spent, because the
// server may have counted the request. They also stay spent if Base refuses the
// request without dialling, for example because of an unknown scheme. A Base
// that is not from net/http must report connections to httptrace, or fail with
// the *net.OpError of dialling.
//
// # Several quotas
//
// For an API with two quotas, such as one a second and one a day, use a
// Transport as the Base of another: each request then spends from both. Put the
// one that fails at once outside, and the one that waits inside:
//
//	perSecond := &httplimit.Transport{Limiter: limiter, Key: httplimit.ByHost(PerSecond), Wait: true}
//	perDay := &httplimit.Transport{Limiter: limiter, Key: httplimit.ByHost(PerDay), Base: perSecond}
//
// A request that the inner one does not send has no connection, so the outer one
// returns its tokens. Each Transport obeys what a response asks, for its own
// limit.
//
// Any number of goroutines may use a Transport. Its fields must not change once
// it is in use.
type Transport struct {
	Limiter stint.Decider

	// Key finds the bucket: ByHost has one for each server, and Single has one for
	// all servers. If Key returns an error, the request fails with that error.
	Key KeyFunc

	// Cost is how many tokens a request takes; nil means 1.
	Cost func(*http.Request) int64

	// Wait makes a request wait for its tokens. It fails with a *rules.QuotaError at
	// once if its turn is after the context's deadline, if the limit's Queue is
	// full, or if the limit is stint.Blocked. Without a deadline the wait may be
	// long. If Wait is not set, each request without tokens fails at once.
	Wait bool

	// OnWait is called before a request waits, with the time until its turn as far as
	// it is known then: a hold may delay it. It is not called for a request that fails
	// at once because its turn is after the deadline.
	OnWait func(r *http.Request, wait time.Duration)

	// MaxHold limits how long a server can keep the client away; 0 means 24
	// hours. After that a request is sent again.
	MaxHold time.Duration

	// Backoff reads an API's own signal, such as a field that has no standard
	// name. If it returns true, no request is sent before until, and no field
	// of the response counts. It is called with each response, and may replace
	// the Body that it reads. nil means no such signal.
	Backoff func(*http.Response) (until time.Time, ok bool)

	// Settle makes Cost an upper bound, such as max_tokens. It is called with each
	// response, and passes the true cost to done, at once if a field has it, or
	// later: it may replace the Body by one that calls done at its end. If it does
	// not call done, the bound stays spent. Only the first call counts. Errors of
	// the Limiter go to OnError, and so does a negative cost, which may be corrected.
	// nil means that Cost is the true cost.
	Settle func(res *http.Response, done func(cost int64))

	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// OnError is called if the Limiter could not do what a response asks, or could
	// not settle a cost, and if a response contradicts itself. The response is
	// returned all the same.
	OnError func(*http.Request, error)

	once   sync.Once // makes client
	client rules.Client
}

// ByHost finds the bucket of the server that a request goes to, such as
// "api.example.com", or "api.example.com:8080" if the port is not the default.
// An internationalized name has one bucket in Unicode and one in ASCII: always
// write it in the same form.
func ByHost(name stint.Name) KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		host := strings.TrimSuffix(strings.ToLower(r.URL.Hostname()), ".")
		if host == "" {
			return stint.Key{}, rules.ErrNoID
		}
		switch port := r.URL.Port(); {
		case port == "",
			port == "80" && r.URL.Scheme == "http", port == "443" && r.URL.Scheme == "https":
			return name.Key(host), nil
		default:
			return name.Key(net.JoinHostPort(host, port)), nil
		}
	}
}

// RoundTrip implements http.RoundTripper. Its errors are those of Key, of the
// Limiter and of Base, and *rules.QuotaError.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Key == nil {
		return nil, notSent(r, errors.New("httplimit: a Transport needs a Key"))
	}
	key, err := t.Key(r)
	if err != nil {
		return nil, notSent(r, fmt.Errorf("httplimit: %w", err))
	}
	cost := int64(1)
	if t.Cost != nil {
		cost = t.Cost(r)
	}
	ctx := r.Context()
	t.once.Do(t.makeClient)
	if t.OnWait != nil {
		ctx = context.WithValue(ctx, waitingKey{}, r)
	}
	turn, err := t.client.Begin(ctx, key, cost)
	if err != nil {
		return nil, notSent(r, err)
	}
	var at attempt
	ctx = context.WithValue(r.Context(), attemptKey{}, &at)
	traced := r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { at.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { at.connected.Store(true) },
	}))
	res, err := t.base().RoundTrip(traced)
	if err != nil {
		var op *net.OpError
		if !at.connected.Load() &&
			(at.asked.Load() || at.notSent.Load() || errors.As(err, &op) && op.Op == "dial") {
			if failed := turn.Refund(); failed != nil {
				err = errors.Join(err, failed)
			}
			tellNotSent(r)
		}
		return nil, err
	}
	if res.Request == traced {
		res.Request = r
	}
	if err := turn.Obey(t.answer(r, res)); err != nil {
		t.failed(r, err)
	}
	if t.Settle != nil {
		t.Settle(res, func(cost int64) {
			if _, err := turn.Settle(cost); err != nil && !errors.Is(err, rules.ErrSettled) {
				t.failed(r, fmt.Errorf("httplimit: Settle: %w", err))
			}
		})
	}
	return res, nil
}

// waitingKey is that of the request in the context of a Client.
type waitingKey struct{}

func (t *Transport) makeClient() {
	t.client.Limiter, t.client.Wait, t.client.MaxHold = t.Limiter, t.Wait, t.MaxHold
	if t.OnWait != nil {
		t.client.OnWait = func(ctx context.Context, _ stint.Key, wait time.Duration) {
			t.OnWait(ctx.Value(waitingKey{}).(*http.Request), wait)
		}
	}
}

func (t *Transport) answer(r *http.Request, res *http.Response) rules.Answer {
	now := t.Limiter.Now()
	wait, refused, contradiction := askedToWait(r.Method, res, now)
	a := rules.Answer{Wait: wait, Refused: refused, OK: !refused && res.StatusCode < 400}
	if t.Backoff != nil {
		if until, ok := t.Backoff(res); ok {
			a.Wait, a.Refused, contradiction = until.Sub(now), false, nil
		}
	}
	if contradiction != nil {
		t.failed(r, contradiction)
	}
	return a
}

func (t *Transport) failed(r *http.Request, err error) {
	if t.OnError != nil {
		t.OnError(r, err)
	}
}

// attempt is what a Transport knows of a request that it has passed to Base.
type attempt struct {
	asked     atomic.Bool // for a connection
	connected atomic.Bool // a server may have seen the request
	notSent   atomic.Bool // by a Transport that is Base
}

type attemptKey struct{}

// notSent closes the body of a request, as a RoundTripper must, tells the
// Transport around this one, and returns err.
func notSent(r *http.Request, err error) error {
	tellNotSent(r)
	if r.Body != nil {
		r.Body.Close()
	}
	return err
}

// tellNotSent tells the Transport around this one that it did not send a
// request.
func tellNotSent(r *http.Request) {
	if at, ok := r.Context().Value(attemptKey{}).(*attempt); ok {
		at.notSent.Store(true)
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// CloseIdleConnections closes the idle connections of Base. http.Client calls
// it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

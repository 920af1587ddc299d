package httplimit

import (
	"cmp"
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
)

// Transport is an http.RoundTripper that keeps a client within a quota, and away from a server for as long as that asks it
// to: a 429 or 503 with Retry-After, or a RateLimit field that says that nothing is left. Both outlast the program, in the
// Limiter's file; close the Limiter before the program exits.
//
// A request spends its tokens before it is sent, and gets them back where it never had a connection: where dialling or TLS
// fails, or the request is cancelled before that is done. A Base other than net/http's must tell so by httptrace, or fail
// with the *net.OpError of dialling. What fails later is spent, as the server may have counted it, and so is what Base will
// not even dial for, such as a scheme that it does not know.
//
// It may be used by any number of goroutines, and must not be changed once it is in use.
type Transport struct {
	Limiter *stint.Limiter

	// Key finds the bucket: per server, ByHost, or one for all, Shared. Its error is the request's.
	Key KeyFunc

	// Cost is how many tokens a request takes; nil means 1.
	Cost func(*http.Request) int64

	// Wait makes a request wait in line for its tokens, within its context. Otherwise, and where its turn would come
	// after the context's deadline, or as many as the limit's Queue wait already, it fails with a *QuotaError. A wait without
	// a deadline may be long.
	Wait bool

	// MaxHold is the longest that a server can keep the client away for; 0 means 24 hours. After that it is asked again.
	MaxHold time.Duration

	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// OnError is told where the server's wish could not be recorded; the response is returned all the same.
	OnError func(*http.Request, error)

	holds sync.Mutex // held while a hold is looked at and made longer
}

// QuotaError says that a request was not sent, and when it might be. http.Client wraps it: use errors.As.
type QuotaError struct {
	Key        stint.Key
	Limit      stint.Limit   // zero where none is configured, and the server said to stay away
	RetryAfter time.Duration // until the request would pass

	err error
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("httplimit: the quota is used up: try again in %v", roundUp(e.RetryAfter))
}

// Unwrap returns context.DeadlineExceeded where the request could have waited, had it been given more time, and stint.ErrQueueFull
// where it could have, had there been fewer others.
func (e *QuotaError) Unwrap() error { return e.err }

// roundUp leaves out what nobody wants to read.
func roundUp(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Truncate(time.Millisecond) + time.Millisecond
	}
	return time.Duration(seconds(d)) * time.Second
}

// ByHost finds the bucket of the server that a request goes to: "api.example.com", or "api.example.com:8080" where the port is
// not the scheme's own. An internationalized name is another in Unicode than in its ASCII form: write it in one of them.
func ByHost(name stint.Name) KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		host := strings.TrimSuffix(strings.ToLower(r.URL.Hostname()), ".")
		if host == "" {
			return stint.Key{}, ErrNoID
		}
		switch port := r.URL.Port(); {
		case port == "", port == "80" && r.URL.Scheme == "http", port == "443" && r.URL.Scheme == "https":
			return name.Key(host), nil
		default:
			return name.Key(net.JoinHostPort(host, port)), nil
		}
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Limiter == nil || t.Key == nil {
		return nil, notSent(r, errors.New("httplimit: a Transport needs a Limiter and a Key"))
	}
	key, err := t.Key(r)
	if err != nil {
		return nil, notSent(r, fmt.Errorf("httplimit: %w", err))
	}
	cost := int64(1)
	if t.Cost != nil {
		cost = t.Cost(r)
	}
	if err := t.spend(r.Context(), key, cost); err != nil {
		return nil, notSent(r, err)
	}
	if r.Context().Err() != nil { // while it waited for a commit
		return nil, notSent(r, t.refund(key, cost, context.Cause(r.Context())))
	}
	var asked, connected atomic.Bool // once connected, a server may have seen it, also where it is sent again
	traced := r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	res, err := t.base().RoundTrip(traced)
	if err != nil {
		var op *net.OpError
		if !connected.Load() && (asked.Load() || errors.As(err, &op) && op.Op == "dial") {
			err = t.refund(key, cost, err)
		}
		return nil, err
	}
	if res.Request == traced {
		res.Request = r
	}
	if wait := askedToWait(res, t.Limiter.Now()); wait > 0 {
		if err := t.hold(key, min(wait, cmp.Or(t.MaxHold, 24*time.Hour))); err != nil && t.OnError != nil {
			t.OnError(r, err)
		}
	}
	return res, nil
}

// refund gives back what was spent on a request that failed, and returns why it did, and why that could not be given back.
func (t *Transport) refund(key stint.Key, cost int64, why error) error {
	if _, err := t.Limiter.Refund(key, cost); err != nil {
		return errors.Join(why, err)
	}
	return why
}

// notSent closes the body of a request that is not sent, as a RoundTripper must.
func notSent(r *http.Request, err error) error {
	if r.Body != nil {
		r.Body.Close()
	}
	return err
}

// spend takes the tokens, or returns why the request must not be sent.
func (t *Transport) spend(ctx context.Context, key stint.Key, cost int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var d stint.Decision
	var why error
	if t.Wait {
		err := t.Limiter.Wait(ctx, key, cost)
		switch {
		case errors.Is(err, stint.ErrQueueFull):
			why = stint.ErrQueueFull
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			why = context.DeadlineExceeded
		default:
			return err
		}
		if d, err = t.Limiter.Check(key, cost); err != nil {
			return err
		}
	} else {
		var err error
		if d, err = t.Limiter.Spend(key, cost); err != nil || d.Allowed {
			return err
		}
	}
	return &QuotaError{Key: key, Limit: d.Limit, RetryAfter: d.RetryAfter, err: why}
}

// hold keeps the client away for as long, or for longer where it was to stay away for longer already.
func (t *Transport) hold(key stint.Key, wait time.Duration) error {
	t.holds.Lock()
	defer t.holds.Unlock()
	until := t.Limiter.Now().Add(wait)
	b, err := t.Limiter.Bucket(key)
	if err != nil || !b.HeldUntil.Before(until) {
		return err
	}
	return t.Limiter.Hold(key, until)
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// CloseIdleConnections is for http.Client.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

package httplimit

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// Rule says which requests are held to a limit, whose bucket they spend from, how much, and when.
type Rule struct {
	// Pattern is an http.ServeMux pattern, such as "POST /login" or "/users/{id}/"; "" is every request. A rule applies
	// wherever its own pattern matches, whatever the others are. The path is cleaned first, also once it is decoded, and
	// a host has no case and no dot at its end. Wildcards are there for Key and CostFunc to read with PathValue.
	Pattern string

	// Key finds the bucket. An id is brought into the canonical spelling of its limit's IDFormat. If there is none, or
	// it is not of that format, the request is answered with 400, unless Optional is set.
	Key KeyFunc

	// Optional lets a request pass that Key finds no id in (ErrNoID), as if the rule were not there. Where it is the
	// client who chooses to send an id, that is a way around the limit.
	Optional bool

	// Cost is how many tokens a request takes; 0 means 1. CostFunc, where there is one, decides instead; where that is
	// negative, or more than the limit's Burst, the request is answered with 400.
	Cost     int64
	CostFunc func(*http.Request) int64

	// CountStatus makes the rule count responses: the bucket is only checked before the handler runs, and is spent from
	// once the handler has chosen a status that CountStatus reports true for. Requests that arrive together may all
	// pass the check; where that is too many, spend before and give back: RefundStatus.
	CountStatus func(status int) bool

	// RefundStatus makes the rule give back what was spent if the handler chooses a status that RefundStatus reports
	// true for, such as ServerError.
	RefundStatus func(status int) bool

	// LockOut is for how long nobody passes once the bucket has fewer tokens left than Cost, or, with CostFunc, none: spent,
	// and not given back. It is durable: stint.Limiter.Hold. 0 means that tokens come back as the limit says.
	LockOut time.Duration

	// Shadow makes the rule decide and report, and never deny: to try a limit out. What it would have denied is told to
	// Options.OnDecision and counted by the Limiter. It writes no header.
	Shadow bool
}

// cost returns how many tokens a request takes.
func (ru *Rule) cost(r *http.Request) int64 {
	if ru.CostFunc != nil {
		return ru.CostFunc(r)
	}
	return max(ru.Cost, 1)
}

// Failed reports whether a status says that the client could not show who it is: 401 or 403.
func Failed(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// ServerError reports whether a status is a 5xx.
func ServerError(status int) bool { return status >= 500 }

// Status returns a function that reports whether a status is one of those.
func Status(statuses ...int) func(int) bool {
	statuses = slices.Clone(statuses)
	return func(status int) bool { return slices.Contains(statuses, status) }
}

// KeyFunc finds the bucket that a request is held against. Its error is ErrNoID where the request has no id. It runs for every
// request, those that are denied among them, and over a Unix socket perhaps twice: where it reads the body, put
// http.MaxBytesHandler around the middleware.
type KeyFunc func(*http.Request) (stint.Key, error)

// ErrNoID: the request does not have what its bucket is found by.
var ErrNoID = errors.New("httplimit: the request has no id")

// ByIP finds the bucket of the socket's peer: an IPv4 address, or the /64 that an IPv6 address is in. An override for an
// IPv6 client is written "2001:db8:0:1::" where the limit's IDFormat is stint.IPAddress, "2001:db8:0:1::/64" where it is
// stint.AnyID. ByIP is for servers that clients connect to directly; behind a proxy all of them are the proxy, see
// ClientAddress. Middleware that writes into RemoteAddr what a header field says is believed, and believes everyone: use
// ClientAddress in its place.
func ByIP(name stint.Name) KeyFunc { return ClientAddress{}.ByIP(name) }

// ByHeader finds the bucket of what a header field says, such as an API key. A request with none, or with several, has
// no id.
func ByHeader(name stint.Name, field string) KeyFunc {
	field = http.CanonicalHeaderKey(field)
	return func(r *http.Request) (stint.Key, error) {
		values := r.Header[field]
		if len(values) != 1 {
			return stint.Key{}, ErrNoID
		}
		return outside(name, values[0])
	}
}

// ByCookie finds the bucket of what a cookie says. A request with none, or with several of that name, has no id.
func ByCookie(name stint.Name, cookie string) KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		cookies := r.CookiesNamed(cookie)
		if len(cookies) != 1 {
			return stint.Key{}, ErrNoID
		}
		return outside(name, cookies[0].Value)
	}
}

// ByBasicAuthUser finds the bucket of the user that the request claims to be from; the password is the handler's to check.
// Set Optional where browsers are to be asked for one.
func ByBasicAuthUser(name stint.Name) KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		user, _, _ := r.BasicAuth()
		return outside(name, user)
	}
}

// ByPathValue finds the bucket of a wildcard in the path: of the rule's Pattern, or of the pattern that led to a handler
// that the middleware is wrapped around.
func ByPathValue(name stint.Name, wildcard string) KeyFunc {
	return func(r *http.Request) (stint.Key, error) { return outside(name, r.PathValue(wildcard)) }
}

// Shared finds the one bucket of a limit whose IDFormat is stint.Shared.
func Shared(name stint.Name) KeyFunc {
	return func(*http.Request) (stint.Key, error) { return name.Key(""), nil }
}

// FirstOf finds the bucket that the first of them does, passing over those that say ErrNoID. Let them be of different
// limits: in one, what a client writes as its API key could be somebody's address.
//
// Where an id can be made up, a client that sends another with each request finds a full bucket each time, and none of those
// behind: a way around all the limits. Let such a KeyFunc check the id, and say ErrNoID of one that it does not know, or hold
// the address to a rule of its own.
func FirstOf(keys ...KeyFunc) KeyFunc {
	keys = slices.Clone(keys)
	return func(r *http.Request) (stint.Key, error) {
		for _, f := range keys {
			key, err := f(r)
			if !errors.Is(err, ErrNoID) {
				return key, err
			}
		}
		return stint.Key{}, ErrNoID
	}
}

// outside returns the key of an id that a client wrote, for the middleware to bring into canonical spelling.
func outside(name stint.Name, id string) (stint.Key, error) {
	if id == "" {
		return stint.Key{}, ErrNoID
	}
	return name.Key(id), nil
}

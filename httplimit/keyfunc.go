package httplimit

import (
	"net/http"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// ByIP finds the bucket of the connection's peer, as the zero [ClientAddress]
// does: an IPv4 address, or the /64 network of an IPv6 address. Use it for
// servers that clients connect to directly. Behind a proxy, every request comes
// from the proxy: use [ClientAddress.ByIP].
func ByIP(name stint.Name) KeyFunc { return ClientAddress{}.ByIP(name) }

// ByHeader finds the bucket of a header field's value, such as an API key. A
// request without the field, or with more than one, has no id.
func ByHeader(name stint.Name, field string) KeyFunc {
	field = http.CanonicalHeaderKey(field)
	return func(r *http.Request) (stint.Key, error) {
		values := r.Header[field]
		if len(values) != 1 {
			return stint.Key{}, rules.ErrNoID
		}
		return sent(name, values[0])
	}
}

// ByCookie finds the bucket of a cookie's value. A request without the cookie,
// or with more than one of that name, has no id.
func ByCookie(name stint.Name, cookie string) KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		cookies := r.CookiesNamed(cookie)
		if len(cookies) != 1 {
			return stint.Key{}, rules.ErrNoID
		}
		return sent(name, cookies[0].Value)
	}
}

// ByBasicAuthUser finds the bucket of the user name in the Authorization field.
// The handler has to check the password. Browsers send no user at first: set
// Optional, so that the handler can ask for one.
func ByBasicAuthUser(name stint.Name) KeyFunc {
	return func(r *http.Request) (stint.Key, error) {
		user, _, _ := r.BasicAuth()
		return sent(name, user)
	}
}

// ByPathValue finds the bucket of a wildcard's value. The wildcard is in the
// rule's Pattern, or in the pattern that routed the request to the middleware.
func ByPathValue(name stint.Name, wildcard string) KeyFunc {
	return func(r *http.Request) (stint.Key, error) { return sent(name, r.PathValue(wildcard)) }
}

// Single finds the one bucket of a limit whose IDFormat is stint.Single.
func Single(name stint.Name) KeyFunc {
	return func(*http.Request) (stint.Key, error) { return name.Key(""), nil }
}

// sent returns the key of an id that a client sent.
func sent(name stint.Name, id string) (stint.Key, error) {
	if id == "" {
		return stint.Key{}, rules.ErrNoID
	}
	return name.Key(id), nil
}

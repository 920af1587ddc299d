package httplimit

import (
	"net/http"

	"github.com/stint-go/stint/rules"
)

// A Rule applies a limit to requests. [rules.Rule] explains its fields. The outcome
// is the status that the handler chooses. See SetStatus for frameworks whose
// handlers return an error instead.
//
// Pattern is an http.ServeMux pattern, such as "POST /login" or "/users/{id}/". A
// rule applies if its own pattern matches, even if other rules match too. Other
// spellings of a path, such as "//login" or an encoded one, match too, as does a
// host in another case. Key and CostFunc read wildcards with PathValue. They may
// read the body: then put http.MaxBytesHandler around the middleware. PostFormValue
// leaves the form for the handler; who reads Body must replace it.
type Rule = rules.Rule[*http.Request, int]

// A KeyFunc finds the bucket of a request.
type KeyFunc = rules.KeyFunc[*http.Request]

// An Observer receives the decisions and the errors of middleware. Until the
// handler runs, it gets the request as the middleware received it, and then as the
// handler does.
type Observer = rules.Observer[*http.Request]

// AuthFailed reports whether a status says that the client failed to
// authenticate, or is not authorized: 401 or 403.
func AuthFailed(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// ServerError reports whether a status is 500 or more.
func ServerError(status int) bool { return status >= 500 }

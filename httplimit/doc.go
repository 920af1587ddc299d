// Package httplimit holds HTTP servers, and HTTP clients, to the limits of a [stint.Limiter].
//
// A server wraps its handlers in the middleware that [New] makes of rules, each of which says whose bucket a request
// spends from, how much, and when:
//
//	limit := httplimit.New(limiter, nil,
//		httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)},
//		httplimit.Rule{Pattern: "POST /login", Key: httplimit.ByIP(FailedLogins), CountStatus: httplimit.Failed},
//	)
//	http.ListenAndServe(":8080", limit(mux))
//
// Behind a proxy, [ClientAddress] finds out whom the request is from. [StatusHandler] shows an operator what happens.
//
// A client sends its requests through a [Transport], which keeps it within a quota, across runs of the program, and
// stays away for as long as the server asks it to.
package httplimit

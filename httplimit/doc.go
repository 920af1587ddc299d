// Package httplimit holds HTTP servers and clients to the limits of a
// [stint.Limiter].
//
// A server wraps its handlers in middleware, which [Middleware] makes from
// rules. Each [Rule] says which requests spend, from which bucket, how much,
// and when; [rules.Rule] has its fields:
//
//	limit := httplimit.Middleware(limiter, nil,
//		httplimit.Rule{Key: httplimit.ByIP(RequestsPerAddress)},
//		httplimit.Rule{
//			Pattern: "POST /login", Key: httplimit.ByIP(FailedLogins),
//			Count: httplimit.AuthFailed,
//		},
//	)
//	http.ListenAndServe(":8080", limit(mux))
//
// A handler calls [rules.Settle] to report the true cost of a request, and
// [rules.Decisions] to read what was decided, both with the request's context.
//
// Behind a proxy, [ClientAddress] finds the address of the client. An
// [Observer] receives decisions and errors; the one in package statuspage shows
// them to an operator.
//
// A client sends its requests through a [Transport], which keeps them within a
// quota across runs of the program, and waits for as long as a server asks.
//
// # Files
//
// For users, in reading order:
//
//	rule.go       Rule, KeyFunc and Observer; statuses to count
//	keyfunc.go    whose bucket: ByIP, ByHeader, Shared, ...
//	address.go    ClientAddress: the client behind proxies
//	options.go    Options of the middleware
//	headers.go    RateLimit and the other fields that clients read
//	transport.go  Transport: the client's side
//
// A request passes through these, and package rules decides on it:
//
//	middleware.go    Middleware, and the steps of a request
//	route.go         matches requests to the Pattern of a rule
//	decision.go      what clients see of a decision
//	problem.go       the answer to a request that does not pass
//	statuswriter.go  a ResponseWriter that notices the status; SetStatus
//	forwarded.go     parser of Forwarded and X-Forwarded-For
//	retryafter.go    the header fields that say how long to wait
//
// # Locks
//
// Package rules guards the decisions about a request. While they are locked,
// PartitionKey is the only function of the program's own that is called.
package httplimit

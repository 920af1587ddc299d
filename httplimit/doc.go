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
//			Refund: func(status int) bool { return !httplimit.AuthFailed(status) },
//		},
//	)
//	http.ListenAndServe(":8080", limit(mux))
//
// A handler calls [rules.Settle] to report the true cost of a request, and
// [rules.Decisions] to read what was decided, both with the request's context.
// Decisions needs Options.Decisions, unless a rule may change its decision later: a
// request by other rules allocates nothing.
//
// Behind a proxy, [ClientAddress] finds the address of the client. An
// [Observer] receives decisions and errors; the one in package statuspage shows
// them to an operator.
//
// A client sends its requests through a [Transport], which keeps them within a
// quota across runs of the program, and waits for as long as a server asks.
//
// # Locks
//
// Package rules guards the decisions about a request. While they are locked,
// PartitionKey is the only function of the program's own that is called.
package httplimit

// Package grpclimit holds gRPC servers and clients to the limits of a
// [stint.Limiter], as package httplimit does for HTTP.
//
// A server installs interceptors, which [Server] makes from rules. Each [Rule]
// says which calls spend, from which bucket, how much, and when; rules.Rule has
// its fields:
//
//	unary, stream := grpclimit.Server(limiter, nil,
//		grpclimit.Rule{Key: grpclimit.ByPeer(CallsPerAddress)},
//		grpclimit.Rule{
//			Pattern: "/shop.Auth/Login", Key: grpclimit.ByPeer(FailedLogins),
//			Count: grpclimit.AuthFailed,
//		},
//	)
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream))
//
// Put them before interceptors that do expensive work, and after those that
// identify the caller, if a KeyFunc needs that.
//
// A handler calls rules.Settle to report the true cost of a call, and
// rules.Decisions to read what was decided, both with its context. Decisions needs
// Options.Decisions, unless a rule may change its decision later.
//
// A client installs the interceptors of [Client]. They keep it within a quota
// across runs of the program, and do not call a server again until the time that
// its RetryInfo asks for has passed.
//
// # What a client sees
//
// A denial has the code ResourceExhausted. Its RetryInfo says exactly when the
// call would pass, and its QuotaFailure names the limits. The built-in retries
// of gRPC clients (retryPolicy) read neither, so a denial also sets the trailer
// grpc-retry-pushback-ms. It sends no header metadata, because gRPC does not
// retry a call that has received some. grpc-gateway and Connect turn a denial
// into a 429. [SetRetryAfter] and [RetryAfterHandler] add Retry-After, as the
// README shows.
package grpclimit

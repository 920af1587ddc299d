// Package rules holds requests to the limits of a [stint.Limiter], whatever
// protocol brings them. Packages httplimit, grpclimit and netlimit are doors over
// it: they find the key and the cost of a request, and tell a client what was
// decided. A door for something else, such as a job runner, is as short as the
// example.
//
// A [Rule] says which requests spend, from which bucket, how much, and when. A
// [Door] has rules, and a request passes it in these steps:
//
//  1. [Door.Begin] finds the rules that apply to the request, their buckets and
//     costs. It takes the places of the request, and then its tokens: all of
//     them, or none. It returns a [Pass].
//  2. [Pass.Context] is for the handler, if the handler needs it: with it, [Settle]
//     reports the true cost of the request, at any time.
//  3. [Pass.End] tells the rules the outcome: they count, refund and lock out.
//  4. [Pass.Leave] gives the places back, if a rule has InFlight.
//
// Doors are independent of each other. A request that passes two of them, one
// within the other, spends and takes a place at each, even from the same bucket.
// Within one pass a bucket is spent from once, by the first rule that can deny.
// [Decisions] lists the decisions of all doors around a request that are in its
// context.
//
// A [Client] is the other side: it keeps a program within the quota of a server.
//
// # States
//
// Each rule of a pass is in one state, and state.go has the table of their
// transitions. A door has no states of its own.
//
// # Locks
//
// Settle holds a mutex of the outermost Pass until it has settled all doors, so
// that two calls come one after the other.
//
// A Pass guards its rules by a mutex, because its end and Settle may run at the
// same time. It is not locked while the Limiter or a function of the program
// runs, except those that [Pass.Each] calls.
package rules

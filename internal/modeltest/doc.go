// Package modeltest is one model of a limiter, for every random test. Only
// tests import it, and it imports nothing of this module.
//
// A [World] takes a [System] through a random history: it picks actions from
// the table [Actions], carries each out on the System and on the model, and
// compares the answers. A new feature is one row in that table, one Op, and
// one case in the adapter of the root's tests.
//
// There are two kinds of checks.
//
// Exact: a [Bucket] is the instant at which it is full again (its TAT), the
// turns that wait, and a hold, in plain integers. What it decides, the System
// must decide. After a failure the model knows an interval of TATs only; it
// requires that answers lie inside it, and an answer narrows it again.
//
// The law: [Law] sees only what the System admitted. Over any stretch of time
// that is at most burst + elapsed ÷ T. A turn counts at the instant at which it
// comes. What Refund, Reset and new limits give is allowed for. And no id is
// stranded: one tolerance after the last event every bucket is full.
//
// What a crash may leave of a bucket is a list of intervals. An acknowledged
// call at Leased or Synced leaves one interval, and so does a flush. Every
// other call adds one.
//
// An [Env] says what surrounds the System: failing saves and loads, crashes,
// little memory, delayed flushes, a file, a real process that is killed.
//
// The rules that the model follows, beside those of the package stint:
//
//   - A turn that waits is charged to the TAT at its instant At:
//     TAT = min(max(TAT, At) + cost·T, At + τ). Newcomers decide on the TAT
//     after all waiting turns.
//   - Cancel of a waiting turn removes it, and the turns after it keep their
//     instants. Any other Cancel does nothing.
//   - A TAT further ahead than the limit allows counts as now + τ. A request for
//     tokens writes that. Check keeps it in memory until the bucket is evicted or
//     other limits come; Bucket does not.
//   - After a failed commit the bucket is as before or as after the call.
//
// A failure reports a seed, and STINT_SEED takes the same history again:
//
//	STINT_SEED=1 go test -run TestWorlds/mem .
//
// The model has no locks: one goroutine drives a World. [Tokens] is a second
// model, in rationals and without a TAT, that the first is compared to.
package modeltest

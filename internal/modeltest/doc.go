// Package modeltest is the model of a limiter that nearly all random tests use.
// Only tests import it. It imports nothing of this module.
//
// A [World] takes a [System] through a random history: it picks actions from
// the table [Actions], carries each out on the System and on the model, and
// compares the answers. A new feature is one row in that table, one Op, and
// one case in the adapter of the root's tests.
//
// There are two kinds of checks.
//
// Exact: a [Bucket] is the instant at which it is full again (its TAT), the
// waiting turns, and a hold, in plain integers. The System must decide as the
// Bucket does. After a failure the model knows only an interval of TATs. Each
// answer must lie inside that interval, and narrows it.
//
// The law: in any stretch of time, the System admits at most burst + elapsed ÷
// T tokens, plus what Refund, Reset and new limits return. [Law] sees only what
// the System admitted. A turn counts at its instant. One tolerance after the
// last event, every bucket must be full, so no id is denied for ever.
//
// For each bucket the model keeps a list of intervals. After a crash, the TAT
// is in one of them. An acknowledged call at Leased or Synced, or a flush,
// replaces the list with one interval. Every other call adds an interval.
//
// An [Env] describes the surroundings of the System: failing saves and loads,
// crashes, little memory, delayed flushes, a file, a real process that is
// killed.
//
// Besides the rules of package stint, the model follows these:
//
//   - A turn that waits is charged to the TAT at its instant At:
//     TAT = min(max(TAT, At) + cost·T, At + τ). Newcomers decide on the TAT
//     after all waiting turns. A turn with a limit of its own has that limit's T
//     and τ, and makes no TAT earlier.
//   - Cancel of a waiting turn removes it, and the turns after it keep their
//     instants. Any other Cancel does nothing.
//   - A TAT further ahead than the limit allows counts as now + τ. A request,
//     and a Check, writes that TAT. Bucket, Hold and a change of the limits do not.
//   - After a failed commit the bucket is as before or as after the call.
//   - While a save is held up, calls on one bucket interleave as flight.go
//     describes.
//
// A failure reports a seed. STINT_SEED repeats the same history:
//
//	STINT_SEED=1 go test -run TestWorlds/mem .
//
// The model has no locks: one goroutine drives a World. [Tokens] is a second
// model, in rationals and without a TAT. The tests compare the two models.
package modeltest

/*
Package stint limits how often something may be done, and remembers it across restarts in one bbolt file. There is no
server to run: a [Limiter] decides in memory, and writes to the file in the background, or before it answers, as each limit
asks.

It is for programs on one machine: servers, edge devices, desktop programs, command-line tools. One process at a time has
the file. For limits that several machines share, use a server; for quotas that begin anew on the first of the month, count
with a calendar: a bucket knows only how long things take.

# Words

A [Limit] is a burst, a count and a period: at most burst tokens at once, and count more in each period as time goes on,
evenly spread. [Limit.Burst] is exact: of a full bucket burst tokens can be spent at one instant, and not one more.

A bucket is one limit held against one id: an address, an account, a host. [Key] names it, by the [Name] of the limit and
the id. [Names.Key] checks an id that comes from outside, and gives it its one spelling. Buckets need not be made: one that nobody knows of is full, and one that is full again is forgotten. So there may be
as many as there are ids in the world, at no cost for those that are quiet.

A request has a cost, in tokens; mostly 1. Spending takes them from the bucket if they are all there, and takes none
if not. The answer is a [Decision], which says when to come back: RetryAfter is exact to the nanosecond, and zero if and
only if the request is allowed. [Limiter.Check] tells what a spend would do, [Limiter.Refund] gives tokens back,
[Limiter.Reset] fills the bucket.

The default of a limit holds for every id; an override holds for some. [Unlimited] is the absence of a limit.

# Algorithm

Limits are kept by the Generic Cell Rate Algorithm, in the virtual scheduling form of the ATM Forum's Traffic Management
Specification 4.0 (1996). The state of a bucket is one number, its theoretical arrival time (TAT): the instant at which it
will be full again. The emission interval T is the time in which one token comes back, period ÷ count; the tolerance τ is
the time in which an empty bucket refills, burst × T. Then

	base = max(now, TAT)
	next = base + cost × T
	allowed if next ≤ now + τ, and the TAT is next from then on
	denied if not, and the TAT stays; come back in next − (now + τ)

This is a token bucket that nobody needs to refill. All of it is in integer nanoseconds; T is rounded up, against
the caller. Over any stretch of time a bucket admits no more than burst + elapsed ÷ T tokens, however many goroutines ask.

A TAT further ahead than τ is brought back to now + τ when it is loaded from the store or its limit changes. So whatever
became of the clock or of the limit, nobody is shut out for longer than an empty bucket takes to refill.

# Durability

What a crash (a kill, a panic, a power cut) may do is up to each limit, by its [Durability]. After [Limiter.Close] there
is nothing to tell: every decision is as if the process had never stopped, except that the queues are gone.

	level               a decision waits for   a crash may forget              a crash may withhold
	Memory              nothing, while there   everything                      nothing
	                    is room in memory
	Flushed (default)   the same               what was spent since the last   refunds and resets
	                                           flush: FlushInterval, and the   since then
	                                           time that one flush takes
	Leased              one commit per lease,  nothing                         one lease of each bucket
	                    which many share
	Synced              the commit of its own  nothing                         nothing
	                    tokens, which many
	                    share

Once Options.MaxResident buckets are in memory, a decision on one that is not among them waits, at every level, until another
has left; for a flush, where all have changed since the last.

A lease runs ahead of what is spent by an eighth of the tolerance at most: the file is told that so much is gone, and up to
there it is spent in memory. It is renewed while half of it is left, so that a bucket in use seldom waits for the disk. Leased
is for quotas that stand for money; Synced, where a crash may not take even a lease.

[Limiter.Flush] makes everything spent so far durable, at every level. A [Limiter.Hold] is durable when it returns. A
[Limiter.SpendAll] with a Leased or Synced limit in it is one commit: after a crash all of it is there, or none. Where all of its limits
are Leased it waits only where a lease ends; with one at Flushed, or Memory, each time.

# Errors

A denial is a Decision, not an error. An error says that there was no decision: with it comes the zero Decision, which
denies, and nothing was spent. There is one exception: [ErrNotDurable] says that the store could not make the decision
durable, and the tokens may stay spent. [Limiter.Allow], which returns no error, answers Options.FailOpen then.

Errors wrap one of the variables below, or a [ConfigError], and can be told apart with [errors.Is] and [errors.As]. Where the
disk fails, limits at Memory and Flushed go on deciding from memory, exactly; those at Leased and Synced return
ErrNotDurable where they would have to write. [Limiter.Health] says what is wrong and since when, until it is over.

# Waiting

[Limiter.Reserve] takes tokens that are not there yet, and [Limiter.Wait] sleeps until they are: first come, first served.
While requests wait in the queue, Spend is denied. [Limit.Queue] bounds the queue. [Reservation.Cancel] leaves it, and
returns the tokens if the turn has not come; after that they are spent. The queue does not outlive the process: after a
restart the bucket is empty at most.

# Ids

[Names.Key] checks an id that comes from outside against the [IDFormat] of its limit, and returns its one spelling:
"::ffff:10.0.0.2" and "10.0.0.2" are one bucket. [Name.Key] takes the id as it is. An address that could not be parsed, passed
to [Name.IP] or [Name.Prefix], has no bucket: the Limiter answers ErrInvalidID, not with a bucket that all of its kind share.

# Time

A Limiter reads the time once per decision: the wall clock as it was at the start, and the monotonic clock since. Where the
wall clock runs ahead (the machine slept, or the clock was set) the Limiter follows; where it is set back it does not, as long as
the process lives. Where it may be behind by more than a bucket takes to refill, as on a machine without a battery-backed clock, open
the file after the clock is set: such a bucket is taken for an empty one of that time when it is spent from or denied, and is full
when the clock is right. With Options.Now a test or a simulation tells it the time.

# Files

The names of limits are written in Go, and each has its limit beside it. [NewLimits] takes other defaults, and overrides; package
limitsfile reads them from YAML. A running Limiter takes others with [Limiter.SetLimits]: a bucket keeps its TAT, but for one
further ahead than the new limit allows.

The bytes of a stint file are described in docs/format.md. Numbers of Names stand in it, so that a number is never given
another meaning: [ErrNameMismatch] says so where it was.
*/
package stint

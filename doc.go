/*
Package stint is a durable rate limiter: a token bucket for each id, implemented
with GCRA in memory and preserved across restarts in one bbolt file. There is no
server to run. A [Limiter] decides in memory, and writes to the file in the
background or before it answers, depending on the Durability of each limit.

It is for programs on one machine: servers, edge devices, desktop programs,
command-line tools. One process at a time owns the file. It is not for limits
that several machines share.

# Words

A [Limit] is a burst, a count and a period. At most burst tokens can be spent at
once, and count tokens come back in each period, evenly spread. The burst is
exact: a full bucket admits burst tokens at one instant, and not one more. A
quota that follows the calendar, such as [EachMonth], returns no tokens during a
period: its bucket is full again when the next period begins.

A bucket is one limit applied to one id: an address, an account, a host. A [Key]
names it, by the [Name] of the limit and the id. You do not create buckets: one
that was never used is full, and one that is full again is forgotten. There may
be any number of ids, because unused ones cost nothing.

A request has a cost in tokens, usually 1. Spend takes all of them if the bucket
has that many, and none otherwise. The answer is a [Decision]. Its RetryAfter is
exact to the nanosecond, and zero if and only if the request is allowed.
[Limiter.Check] says what a spend would do, [Limiter.Refund] returns tokens, and
[Limiter.Reset] fills the bucket.

The default of a limit applies to every id that has no override.

# Algorithm

Limits are enforced by the Generic Cell Rate Algorithm, in the virtual
scheduling form of the ATM Forum's Traffic Management Specification 4.0 (1996).
The state of a bucket is one number, its theoretical arrival time (TAT): the
instant at which it will be full again. The emission interval T is the time in
which one token comes back, period ÷ count. The tolerance τ is the time in which
an empty bucket refills, burst × T. Then

	base = max(now, TAT)
	next = base + cost × T
	allowed if next ≤ now + τ: the TAT becomes next
	denied otherwise: the TAT stays, and RetryAfter is next − (now + τ)

All arithmetic is in integer nanoseconds, and T is rounded up, to the caller's
disadvantage. Over any stretch of time a bucket admits at most burst + elapsed ÷
T tokens, however many goroutines ask.

A TAT that is more than τ in the future is reduced to now + τ by the first
request after its limit became smaller, or after it was loaded from the store. So
no id is shut out for longer than an empty bucket takes to refill, whatever
happened to the clock or to the limit. A quota that follows the calendar remembers
what a larger one has used: it shuts no id out for longer than its period.

# Durability

A crash is a kill, a panic or a power cut. The [Durability] of each limit says
what a crash may do. After [Limiter.Close] every decision is as if the process
had never stopped, except that the queues are gone.

	level               a decision waits for   a crash may forget           a crash may withhold
	Memory              nothing                everything                   refunds and resets since
	                                                                        Flush or a snapshot saved it
	Flushed (default)   nothing                what was spent since the     refunds and resets
	                                           last flush: for at most      since then
	                                           FlushInterval and one flush
	Leased              one commit, if it      nothing                      one lease of each bucket
	                    begins a lease
	Synced              one commit             nothing                      nothing

Callers that wait at the same time share a commit. A denied Spend waits for
none. Once memory holds Options.MaxResident buckets, a decision on any other
bucket waits until one of them has left, at every level. If all of them have
changed since the last flush, the decision waits for a flush.

A lease is a number of tokens, at most an eighth of the burst, that the file
counts as spent in advance. Later spends take their tokens from the lease, in
memory. A lease is renewed when half of it is left, so a bucket in use seldom
waits for the disk. With a burst of 8 or less, or a calendar quota under 16, each
spend waits, because half a lease is less than a token. Leased is for quotas that
cost money. Synced is for quotas from which a crash must not take even a lease.

[Limiter.Flush] makes everything spent so far durable, at every level. A
[Limiter.Hold] is durable when it returns. A [Limiter.SpendAll] that includes a
Leased or Synced limit is one commit: a crash leaves all of it or nothing. If all
of its limits are Leased, it waits only at the end of a lease; if one is Flushed
or Memory, it waits each time.

# Errors

A denial is a Decision, not an error. An error means that there was no decision:
it comes with the zero Decision, which denies, and nothing was spent. The one
exception is [ErrNotDurable]: the store could not make the decision durable, and
the tokens may stay spent. [Limiter.Allow] returns no error: if there is no
decision, it returns Options.FailOpen.

Most errors wrap one of the variables below, or a [ConfigError]; [errors.Is] and
[errors.As] tell them apart. If a bucket cannot be read, the error is the
store's. If the disk fails, decisions at Memory and Flushed continue from
memory, and stay exact. Limits at Leased and Synced return ErrNotDurable when
they would have to write. [Limiter.Health] says what is wrong, and since when,
for as long as it lasts. docs/faults.md lists the faults, and what each leaves
behind.

# Waiting

[Limiter.Reserve] takes tokens that the bucket does not have yet, and
[Limiter.Wait] sleeps until it has them: first come, first served. While
requests wait in the queue, Spend is denied. [Limit.Queue] bounds the queue.
[Reservation.Cancel] leaves the queue, and returns the tokens if the turn has
not come yet. Once the turn has come, they are spent. The queue ends with the
process. After a restart the bucket is at worst empty.

# Ids

[Names.Key] checks an id that comes from outside against the [IDFormat] of its
limit, and returns a Key with the one spelling that stint uses:
"::ffff:10.0.0.2" and "10.0.0.2" share a bucket. [Name.Key] takes the id as it
is. A Key that [Name.IP] or [Name.Prefix] makes from the zero netip.Addr, which
a failed parse returns, gets ErrInvalidID from the Limiter. Package idformat
provides more formats.

# Time

A Limiter's clock starts at the time of the wall clock, and then follows the
monotonic clock. If the wall clock runs ahead, because the machine slept or the
clock was set, the Limiter follows. If it is set back, the Limiter
ignores that until the process ends.

A machine without a battery for its clock may start with a wrong clock. The file
records the time of the last save, and the boot during which it was made. If the
wall clock is behind that time, or more than ten years ahead of it, the Limiter
continues from the time of that save, advancing only while the machine runs,
until the clock is right. [Limiter.Health] reports it. docs/edge.md covers all
cases. A new file records no save, so open it after the clock is set.
Options.Now replaces the clock, for a test or a simulation.

# Files

Names are declared in Go, each together with its limit. [Names.WithLimits]
replaces these limits, such as with those of a configuration. An [Override] is
the limit of a single id. Package limitsfile reads limits and overrides from
YAML. [Limiter.SetLimits] replaces the limits of a running Limiter, and
[Limiter.SetOverrides] the overrides of single ids.

docs/format.md describes the bytes of a stint file. The file stores the numbers
and labels of Names. Never give a number another meaning: if the file has another
label for it, the error is [ErrNameMismatch].
*/
package stint

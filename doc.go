/*
Package stint is a durable rate limiter: a token bucket for each id, implemented
with GCRA in memory and preserved across restarts in one bbolt file. There is no
server to run. One process at a time owns the file. Package hostlimit lets several
processes share it, and module redislimit several machines share limits.

Which one do I call? Spend in a handler; Wait in a job; SpendAll for several limits;
Do if you have a context or want each answer. [Limiter.Allow] is Spend for one token
without the answer, and [Limiter.DoEach] decides many independent requests.

A [Limit] is a burst, a count and a period: at most burst tokens at once, and count
tokens come back in each period, evenly spread. A quota that follows the calendar,
such as [EachMonth], is full again when the next period begins. A bucket is one limit
applied to one id, such as an address or an account, and a [Key] names it. You do not
create buckets: one that was never used is full, and one that is full again is
forgotten. The answer to a request is a [Decision]. Its RetryAfter is exact to the
nanosecond, and zero if and only if the request is allowed.

Names are declared in Go, each with its limit. An [Override] is the limit of a single
id. Package limitsfile reads both from YAML, [Limiter.SetLimits] replaces the limits
while the program runs, and [Limiter.SetOverrides] those of single ids. The numbers of
[Names] are in the file: never give one another meaning. [Names.Key] checks an id that
comes from outside, and [Name.Key] takes it as it is.

# Durability

A crash is a kill, a panic or a power cut. The [Durability] of each limit says what a
crash may do. After [Limiter.Close] every decision is as if the process had never
stopped, except that the queues are gone.

	level               a decision waits for   a crash may forget           a crash may withhold
	Memory              nothing                everything                   refunds and resets since
	                                                                        Flush or a snapshot saved it
	Flushed (default)   nothing                what was spent since the     refunds and resets
	                                           last flush: for at most      since then
	                                           FlushInterval and one flush,
	                                           or for milliseconds if it
	                                           was quiet for that long
	Leased              one commit, if it      nothing                      one lease of each bucket
	                    begins a lease
	Synced              one commit             nothing                      nothing

Callers that wait at the same time share a commit, and a denied Spend waits for none.
A SpendAll that includes a Leased or Synced limit is one commit. [Limiter.Flush] makes
everything spent so far durable, and a hold is durable when the call returns.

# Errors

A denial is a Decision, not an error. An error means that there was no decision: it
comes with the zero Decision, which denies, and nothing was spent. The one exception
is [ErrNotDurable]: the store could not make the decision durable, and the tokens may
stay spent. If the disk fails, decisions at Memory and Flushed continue from memory,
and [Limiter.Health] says what is wrong.

docs/algorithm.md has the arithmetic, leases and the clock; docs/choosing.md helps to
choose limits and levels; docs/faults.md lists the faults, and what each leaves behind.
All are at https://github.com/stint-go/stint/tree/main/docs.
*/
package stint

/*
Package redislimit keeps the buckets of stint on a Redis or Valkey server, so
that several machines share them. A [Limiter] works with the Limits, Keys and
Decisions of package stint, and is a [stint.Decider]: httplimit takes one in place
of a *stint.Limiter.

# Decisions

A decision is one round trip to the server, unless its limit is Leased or a
denial is repeated. Decisions are exact: over any stretch of time all machines
together admit at most burst + elapsed ÷ T tokens of a bucket. Decisions use the
server's clock. Several buckets are decided in one trip, as [Limiter.SpendAll]
says. Callers that arrive while two trips are under way share the next one, and
each gets an answer or an error of its own. A denial is repeated without a trip
for up to Options.RepeatDenials. After that, one caller asks again, and until it
has an answer the others still get the old one. The RetryAfter of a repeated
denial may be too short by one round trip.

The levels memory and flushed are as durable as the server's own persistence.
Synced also waits until Options.Replicas replicas have received the decision. If
that takes too long, the error is stint.ErrNotDurable, and the tokens may stay
spent. Quotas that follow the calendar are refused. There are no queues:
Wait sleeps and tries again, and Reserve does not exist.

# While the server is away

A server is away if it refuses or breaks a connection, or if neither a call nor
the probe after it gets an answer in time. A server that replies that it cannot
decide now, such as a replica, also counts as away. From then on no call waits
for it, and one goroutine probes until it is back. In a cluster, each shard can
be away by itself. Without an [Options].Away, every call to a cluster still asks,
because a replica may have taken over.

During an outage a machine admits what its Options.Away admits, and nothing is
charged later. That is any [stint.Decider], with limits and buckets of its own. A
*stint.Limiter with each limit DividedBy the number of machines is bounded: all
machines together admit at most burst + elapsed ÷ T during the outage. The server's
bucket fills up meanwhile. In a file, that Limiter remembers over restarts what it
has admitted. If Away is nil, decisions are [ErrAway]; [AwayOpen] admits everything.

Away decides on all requests of a call that need a server which is away, whole
calls at once. If some are for other servers of a cluster, and those deny, the
tokens of Away are returned. A Refund goes to the buckets that decide when it is
made, Bucket reads those, and Wait tries again as soon as a server is back. Hold,
SetHold and Reset return ErrAway, because other machines would not notice them.
Away does not know the holds of the server: a program that needs them in an outage
sets them there, too. SetLimits leaves the limits of Away alone. A lease is used
until it ends, and a denial is repeated, before Away is asked. If the server does
not answer a call, Away may decide it, and its tokens may also be spent at the
server.

If Away is closed, or its limits do not fit a request, the error is ErrAway, and
nothing was spent. Another error of Away is passed on, as [stint.ErrNotDurable] is:
then the tokens may be spent. A call takes as long as Away takes.

# Leases

If a limit is Leased, a trip takes tokens in advance, and this machine makes the
following decisions from memory. Over any stretch Δ all machines together use at
most burst + (Δ + H) ÷ T tokens, so at most 9/8 burst + Δ ÷ T, whichever
machines crash, hang or are cut off. A server that crashes may forget leases. H
is the longest life of a lease: τ ÷ 8, and at most Options.MaxLease (a minute).
A lease's life is measured by the machine's monotonic clock, and begins before
the request for the lease is sent. In this bound, a call that waited for the
server counts at the instant at which the server decided.

A lease is at most burst ÷ 8, and at most an eighth of what is free, unless the
callers that wait need more at once. How much a machine asks for follows the
demand, and it asks in the background before the lease is used up. Callers that
find no tokens share a trip. At Close, and when a lease has ended, its unused
tokens are returned to the server, except those that have already come back with
time. A machine that dies withholds at most burst ÷ 8 until time brings it back.
Tokens whose reply is lost are never used, and come back with time, too.

Refund, Bucket and a request with its own Limit make a trip, and leave the lease
as it is. A request with UpTo takes what the lease has, and makes a trip for the rest. A
SpendAll makes a trip if one of its leases has too few tokens. A call that costs
more than its lease makes a trip that hands the lease back and takes what the
call needs. Hold and Reset end the lease of this machine. Another machine
notices a Hold or a Reset when it next asks for tokens, or at the end of its
lease. Until then it spends its lease as before, on top of the tokens of a
bucket that was reset. SetLimits drops the leases of limits that have changed;
time brings their tokens back. A bucket with a burst under 8 gets no leases, and
neither do buckets beyond the 65,536 that a machine remembers.

Tokens on lease count as spent, except in decisions from the lease itself.
Remaining and ResetAfter in such decisions are those of the lease's last trip,
without what others have spent since.

# Errors

An error never admits a request, except that Allow follows Options.FailOpen.
[ErrAway], [ErrBusy] and [ErrNoAnswer] say whether tokens may be spent. If a key
on the server is not a bucket, the error names the key. A refusal by the server
is an error too.

# Keys

The key of a bucket is PREFIX:{ID}:NAME, such as stint:{alice}:6. In a cluster
the part in braces chooses the slot, so all limits on one id are decided
together. An id that begins with a closing brace is in hexadecimal:
stint::{7d61}:6. With Options.Tag, a part of the id chooses the slot. With
Options.PlainKeys, an instance of Boulder, Let's Encrypt's CA, that uses the same
server shares the buckets; such buckets have no holds, and keep their TATs when
limits change.
*/
package redislimit

/*
Package redislimit keeps the buckets of stint on a Redis or Valkey server, so
that several machines share them. A [Limiter] has the Limits, Keys and Decisions
of package stint, and is a [stint.Decider]: httplimit takes one in place of a
*stint.Limiter.

# What is there

Every decision is one round trip to the server, and exact: over any stretch of
time all machines together admit at most burst + elapsed ÷ T tokens of a bucket.
The time is the server's. Several buckets are decided in one trip, as
[Limiter.SpendAll] says. Callers that arrive while two trips are under way share
the next one, each with an answer or an error of its own. A denial is repeated
for up to Options.Fresh without a trip; its RetryAfter may then be early by the
time of one round trip.

Three levels of durability exist: memory and flushed are as durable as the
server's own persistence, and synced also waits until Options.Replicas replicas
have the decision. If they do not have it in time, the error is
stint.ErrNotDurable, and the tokens stay spent. Leased is refused with
ErrNoLeases, and so are shares of a total (NameSpec.Parent). There is no
fallback while the server is away. A server is away if it refuses a connection,
or leaves three calls in a row without an answer. Decisions then return ErrAway
at once, and one goroutine probes until the server is back. In a cluster, every
call still asks. There are no queues: Wait sleeps and tries again, and Reserve
does not exist.

# Errors

An error never admits, unless Options.FailOpen says so for Allow. After ErrAway
nothing was spent. After ErrNoAnswer the tokens may be spent, because the request
was sent and no answer came; it is not sent again. If a key of the server is not
a bucket, the error names it. A refusal by the server is an error too.

# Keys

The key of a bucket is PREFIX:{ID}:NAME, such as stint:{alice}:6. Braces choose
the slot in a cluster, so all limits on one id are decided together there.
Options.Tag chooses by another part of the id. Options.Plain shares buckets with a
Boulder that runs on the same server; such buckets have no holds, and keep their
time when limits change.
*/
package redislimit

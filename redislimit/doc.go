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
ErrNoLeases, and so are shares of a total (NameSpec.Parent). There are no
queues: Wait sleeps and tries again, and Reserve does not exist.

# While the server is away

A server is away if it refuses or breaks a connection, or leaves three calls in
a row without an answer. So is one that replies that it cannot decide now, as a
replica does. From then on no call waits for it, and one goroutine probes until
it is back. [Options].Away says what holds meanwhile. In a cluster this is so for
each shard, unless all limits have AwayClosed: then every call still asks.

With [AwayShare] each machine has a share of each limit: the burst ÷ Nodes, and
Nodes times the interval. Its buckets begin as the machine saw those of the
server last. Decisions are those of a stint.Limiter with these limits, and a
Decision has the share as its Limit. A request for more tokens than the share
ever has is ErrAway. When the server is back, each of its buckets is charged
before the next decision. The charge is what this machine has spent in it and
what has not come back, ÷ Nodes, and it empties the bucket at most. So all
machines together admit at most burst + elapsed ÷ T, and what others had spent
since each of them looked last.

Holds that a machine has seen stay in force. Hold and Reset are ErrAway, because
other machines would not know. A Refund returns at most what this machine has
spent in the meantime. A call that the server left without an answer may
be decided here, and its tokens may be spent at the server, too.

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

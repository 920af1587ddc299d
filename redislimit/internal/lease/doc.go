/*
Package lease keeps the leases of one machine: tokens that it has taken from buckets in advance, so
that it can decide without a trip. It also remembers which buckets were empty lately.

Read the files in this order: lease (one bucket's lease and its law, without a clock or a server),
table (the buckets of the machine), seen (denials that are repeated without a trip), spend (the
callers, the requests to the server, and what goes back).

Several shards are locked in the order of their numbers.
*/
package lease

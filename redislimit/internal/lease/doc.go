/*
Package lease keeps the leases of one machine: tokens that it has taken from buckets in advance, so
that it can decide without a trip.

Read the files in this order: lease (one bucket's lease and its law, without a clock or a server),
seen (denials that are repeated without a trip), table (the buckets of the machine), spend (the
callers, the requests to the server, and what goes back).

A lock of the Table's shards comes before a lock of Seen. Several shards are locked in the order of
their numbers.
*/
package lease

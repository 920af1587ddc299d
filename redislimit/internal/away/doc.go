/*
Package away notices when a server, or a shard of a cluster, is away, and when it is back. It does
not decide, and does not know how calls are made: it reaches the server through Server.

Read the files in this order: watch (the servers of a Limiter), shards (which server has a bucket),
outage (when a server is away).
*/
package away

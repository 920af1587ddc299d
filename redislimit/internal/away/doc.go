/*
Package away takes over while the server is away: it notices, decides with this machine's share of
the limits, and charges the server once it is back. It knows nothing of leases or of how calls are
made: it reaches the server through Server.

Read the files in this order: debtstore (the home without a file), home (the two buckets of each
key), nodes (debts of another number of machines), shards (which server), seen (what replies and
holds change), outage (when a server is away), decide, settle (the charges).

Order of locks: Outage.probing, Outage.settling, Node.mu, cutMu, holdOrder, holdsMu,
Outage.recentMu, the locks of the local Limiter.
*/
package away

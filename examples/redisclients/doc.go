/*
Package redisclients shows how redislimit uses a connection pool that a program
already has. Copy the file of your library. The program sets up the pool and
closes it.

Such a Limiter has no limits of durability synced: for these a Client also needs
the method EvalWait, which runs two commands on one connection.
*/
package redisclients

/*
Package redisclients shows how redislimit uses a connection pool that a program
already has. Copy the file for the library that you use. The program sets up the
pool and closes it.

A Limiter with one of these Clients cannot have limits of durability synced. For
such limits a Client also needs the method EvalWait, which runs two commands on
one connection.
*/
package redisclients

/*
Package script runs the scripts of redislimit on a Redis or Valkey server, or on a cluster. It
decides how buckets are put into calls, which callers share a call, and what an error means. The
scripts know keys, instants and durations; the limits in requests are for the other packages.

Read the files in this order: errors, slot, client, rueidis, scripts, request, trip, mode, server,
lanes, leasecall. No file uses a function of a later one.
*/
package script

/*
Package script runs the scripts of redislimit at a Redis or Valkey server, or at a cluster. It
decides how buckets are put into calls, who shares a call, and what an error means. It knows keys,
instants and durations, and no limits.

Read the files in this order: errors, slot, client, rueidis, scripts, request, trip, mode, server,
lanes, leasecall. No function of a later file is used.
*/
package script

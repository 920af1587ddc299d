// Package replay says what limits would have done to the requests of logs: lines
// in, summary out. It reads access logs, JSON, syslog and lines that a regular
// expression describes, and decides on each request with a Limiter whose clock
// shows the time of the line.
//
// Read the files in this order: lines, access, time, syslog, format, servers,
// timeline, replay, summary.
package replay

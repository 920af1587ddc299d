// Package replay says what limits would have done to the requests of logs: lines
// in, summary out. A table (formats) says how the lines of a log are recognized and
// cut into fields. A Limiter whose clock shows the time of the line decides.
//
// Read the files in this order: lines, fields, access, syslog, formats, address,
// time, format, timeline, replay, summary.
package replay

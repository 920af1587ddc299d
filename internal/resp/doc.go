// Package resp reads the commands of Redis clients and writes replies, in
// versions 2 and 3 of the Redis protocol (RESP). It does not know what any
// command means.
//
// A Reader takes a connection's bytes as they come, and returns every command
// that is complete. Its memory is bounded, whatever a client sends. A Writer
// collects replies. Each is for one goroutine.
package resp

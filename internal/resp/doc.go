// Package resp reads the commands of Redis clients and writes replies, in the
// versions 2 and 3 of Redis's protocol (RESP). It knows no command.
//
// A Reader takes a connection's bytes as they come, and returns every command
// that is complete. Its memory is bounded, whatever a client sends. A Writer
// collects replies. Neither is for more than one goroutine.
package resp

// Package conformance holds what httplimit writes against parsers that are not ours, and puts its middleware into routers
// that are not ours. It is a module of its own, so that nobody who uses the library needs them.
package conformance

// Package conformance tests httplimit with the parsers and routers of other
// projects. It is a module of its own, so that users of the library do not
// depend on them.
package conformance

// Package clients tests stint serve with Go's Redis clients, at their default
// options. It is a module of its own, so that the requirements of stint do not
// grow.
package clients

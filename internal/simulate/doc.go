// Package simulate says what limits do to a load that is described in words, on
// a simulated clock, and draws it. Read the files in this order: simulate, tenants,
// text.
package simulate

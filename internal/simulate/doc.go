// Package simulate shows what limits do to a load described in words, on a
// simulated clock, and draws the result. Read the files in this order:
// simulate, text.
package simulate

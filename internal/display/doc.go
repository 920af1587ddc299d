// Package display writes values for people and for JSON: ids, limits, numbers,
// durations and tables, in text that fits a terminal's width and cannot control
// the terminal.
package display

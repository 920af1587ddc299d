// Package testlength says how much a test does that repeats something: kills of a
// process, random histories, steps of a sweep. By default it does a sample, with
// the tag long all of it, and with the tag and -short a fifth.
package testlength

import "testing"

// Of returns full with the tag long, a fifth of that with -short, but no less than
// sample, and sample without the tag.
func Of[T ~int | ~int64](full, sample T) T {
	switch {
	case !Long:
		return sample
	case testing.Short():
		return max(full/5, sample)
	}
	return full
}

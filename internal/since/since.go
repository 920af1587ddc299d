// Package since has a failure that goes on, with its beginning.
package since

import (
	"fmt"
	"time"
)

// Failure is the error of the last attempt, and the time of the first failure in
// a row. The zero Failure is none.
type Failure struct {
	Err   error
	Since time.Time
}

// Says returns the failure as an error that begins with what fails, or nil if
// there is none.
func (f Failure) Says(what string) error {
	if f.Err == nil {
		return nil
	}
	return fmt.Errorf("stint: %s since %s: %w", what, f.Since.UTC().Format(time.RFC3339), f.Err)
}

// Next returns the failure after an attempt that ended at a time. It has the
// beginning of f if both failed.
func (f Failure) Next(err error, now time.Time) Failure {
	switch {
	case err == nil:
		return Failure{}
	case f.Err != nil:
		now = f.Since
	}
	return Failure{err, now}
}

// Package hold moves the end of a hold.
package hold

import (
	"errors"
	"time"

	"github.com/stint-go/stint"
)

// Holder is the part of a Limiter that holds buckets.
type Holder interface {
	Hold(key stint.Key, until time.Time) (end time.Time, err error)
	Release(key stint.Key) error
}

// Until makes the hold on a key end at an instant, even if it ends later now. A
// hold that gets longer is never interrupted. If one cannot be shortened, it
// stays as it was, unless that fails, too: then the error says so.
func Until(l Holder, key stint.Key, end time.Time) error {
	now, err := l.Hold(key, end)
	if err != nil || !now.After(end) {
		return err
	}
	if err := l.Release(key); err != nil {
		return err
	}
	if _, err = l.Hold(key, end); err == nil {
		return nil
	}
	_, again := l.Hold(key, now)
	return errors.Join(err, again)
}

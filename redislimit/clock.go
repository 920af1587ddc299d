package redislimit

import (
	"context"
	"time"

	"github.com/stint-go/stint/redislimit/internal/script"
)

// Now returns the server's time, as far as this machine knows it from the last
// round trip.
func (l *Limiter) Now() time.Time { return l.server.Time() }

// elapsed returns the time by the clock that measures the age of sightings and
// leases.
func (l *Limiter) elapsed() int64 {
	if l.opts.Now != nil {
		return script.Instant(l.opts.Now())
	}
	return int64(time.Since(l.start))
}

// context returns the context of a call.
func (l *Limiter) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), l.opts.Timeout)
}

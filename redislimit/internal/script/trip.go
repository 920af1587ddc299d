package script

import (
	"sync/atomic"
	"time"
)

// Trip is a group of requests that the script carries out all or none. Their keys
// are those of one call, as Calls has them. Server.Run carries a trip out.
type Trip struct {
	Op       Op
	Requests []*Request // with the answers, made with the same limits
	Synced   bool       // wait for replicas
	Gate     Gate
	Begun    time.Time // when its caller's call began
	Away     bool      // Options.Away decides in place of the server
	At       time.Time // an instant just before that, by the clock of Options.Away

	Allowed bool
	Err     error // after an error other than stint.ErrNotDurable the answers mean nothing

	news chan bool // of a trip that waits: true if it leads the next call, false if it has ended
}

// Gate guards the way to one server.
type Gate interface {
	// Away reports whether no call may be made now.
	Away() bool

	// Ended learns how a call ended.
	Ended(err error)
}

// Since is the server's time when limits were loaded, in microseconds. The
// script cuts a bucket down once for each. 0 means that it is not known yet.
type Since struct{ atomic.Int64 }

// MaxTogether is the most buckets of one trip.
const MaxTogether = 64

// finish gives all trips the error.
func finish(batch []*Trip, err error) {
	for _, t := range batch {
		t.Err = err
	}
}

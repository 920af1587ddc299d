package table

import "sync/atomic"

// Bell tells the first bucket that becomes dirty from those that follow: it rings
// once each time that it was set. Many Slots share one.
type Bell struct {
	C   chan struct{} // receives when the bell rings; has room for one
	set atomic.Bool
}

// NewBell returns a Bell that is not set.
func NewBell() *Bell { return &Bell{C: make(chan struct{}, 1)} }

// Set makes the bell ring for the next bucket that becomes dirty.
func (b *Bell) Set() { b.set.Store(true) }

// Unset makes the bell silent, also if it has rung and nobody has heard it yet.
func (b *Bell) Unset() {
	b.set.Store(false)
	select {
	case <-b.C:
	default:
	}
}

func (b *Bell) ring() {
	if b.set.Load() {
		b.rings()
	}
}

func (b *Bell) rings() {
	if b.set.CompareAndSwap(true, false) {
		select {
		case b.C <- struct{}{}:
		default:
		}
	}
}

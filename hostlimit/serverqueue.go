package hostlimit

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/stint-go/stint"
)

// wait waits for a turn.
func (c *serverConn) wait(f frame) error {
	req, within := f.body.request(), f.body.int()
	if err := f.body.end(); err != nil {
		return err
	}
	id := f.id
	ctx, cancel := context.WithCancel(c.ctx)
	if within >= 0 {
		ctx, cancel = context.WithTimeout(c.ctx, time.Duration(within))
	}
	c.mu.Lock()
	_, taken := c.waits[id]
	ok := len(c.waits) < maxWaits && !taken && !c.leaving
	if ok {
		c.waits[id] = cancel
	}
	leaving := c.leaving
	c.mu.Unlock()
	if !ok {
		cancel()
		if leaving {
			c.fail(id, errMoved)
		} else {
			c.fail(id, errTooMany)
		}
		return nil
	}
	c.running.Go(func() {
		defer cancel()
		err := c.declared(func() error { return c.server.limiter.WaitRequest(ctx, req) })
		c.mu.Lock()
		delete(c.waits, id)
		leaving := c.leaving
		c.mu.Unlock()
		switch {
		case err == nil:
			c.reply(id, true, nil)
		case leaving && errors.Is(err, context.Canceled): // its tokens are back
			c.fail(id, errMoved)
		default:
			c.fail(id, err)
		}
	})
	return nil
}

// reserve takes a place in a queue, and keeps it for the guest.
func (c *serverConn) reserve(req stint.Request) (func([]byte) []byte, error) {
	c.mu.Lock()
	if len(c.places) >= maxReservations {
		for id, place := range c.places {
			if place.Delay() == 0 {
				delete(c.places, id)
			}
		}
	}
	full := len(c.places) >= maxReservations
	c.mu.Unlock()
	if full {
		return nil, errTooMany
	}
	var place stint.Reservation
	err := c.declared(func() (err error) { place, err = c.server.limiter.ReserveRequest(req); return err })
	if err != nil {
		return nil, err
	}
	delay := place.Delay()
	c.mu.Lock()
	c.last++
	id, open := c.last, c.places != nil
	if open && delay > 0 {
		c.places[id] = place
	}
	c.mu.Unlock()
	if !open { // the guest is gone
		place.Cancel()
	}
	return func(b []byte) []byte { return binary.AppendVarint(binary.AppendVarint(b, id), int64(delay)) }, nil
}

// place answers a call for a reservation. A missing reservation has had its turn.
func (c *serverConn) place(o op, id int64) (func([]byte) []byte, error) {
	c.mu.Lock()
	place, ok := c.places[id]
	if ok && o == opCancel {
		delete(c.places, id)
	}
	c.mu.Unlock()
	delay := time.Duration(0)
	switch {
	case ok && o == opCancel:
		place.Cancel()
	case ok:
		delay = place.Delay()
	}
	return appendInt(int64(delay)), nil
}

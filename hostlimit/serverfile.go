package hostlimit

import (
	"encoding/json"

	"github.com/stint-go/stint"
)

// parts sends many small things in few parts of a reply.
type parts struct {
	c   *serverConn
	id  uint32
	buf []byte
}

// sent sends the part if it is long enough, or if it is the last.
func (p *parts) sent(last bool) error {
	if !last && len(p.buf) < 16<<10 {
		return nil
	}
	err := p.c.out.send(opPart, p.id, func(b []byte) []byte { return append(b, p.buf...) })
	p.buf = p.buf[:0]
	return err
}

// buckets lists buckets.
func (c *serverConn) buckets(id uint32, name stint.Name) error {
	p := parts{c: c, id: id}
	for k, err := range c.server.limiter.Buckets(name) {
		if err != nil {
			return err
		}
		p.buf = appendBucket(p.buf, &k)
		if err := p.sent(false); err != nil {
			return err
		}
	}
	return p.sent(true)
}

// held lists holds and queues.
func (c *serverConn) held(id uint32) error {
	p := parts{c: c, id: id}
	for h := range c.server.limiter.Held() {
		p.buf = appendHeld(p.buf, &h)
		if err := p.sent(false); err != nil {
			return err
		}
	}
	return p.sent(true)
}

// wireStats are Stats whose errors are text.
type wireStats struct {
	stint.Stats
	FlushErr, CommitErr, FileErr string
}

func text(err *error) (s string) {
	if *err != nil {
		s, *err = (*err).Error(), nil
	}
	return s
}

// whole carries out a call for the whole file.
func (c *serverConn) whole(o op, id uint32) (func([]byte) []byte, error) {
	l := c.server.limiter
	switch o {
	case opFlush:
		return nil, l.Flush()
	case opHealth:
		return nil, l.Health()
	case opStats:
		st := wireStats{Stats: l.Stats()}
		st.FlushErr, st.CommitErr, st.FileErr = text(&st.Flush.Err), text(&st.Commit.Err), text(&st.File.Err)
		js, err := json.Marshal(st)
		return func(b []byte) []byte { return append(b, js...) }, err
	}
	n, err := l.Snapshot(snapshotWriter(func(p []byte) error {
		return c.out.send(opPart, id, func(b []byte) []byte { return append(b, p...) })
	}))
	return appendInt(n), err
}

package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

// OwnerInfo says which process has the file.
type OwnerInfo struct {
	PID   int
	Since time.Time // by the clock of its Limiter
}

// A Guest asks the owner of a file, and never becomes the owner. It is for the
// commands of operators. Its methods do what those of stint.Limiter do. The
// owner's limits apply to a request without a Limit. After the owner has gone,
// calls return ErrNoOwner.
type Guest struct {
	methods
	conn *conn
	p    place
}

// Dial connects to the process that serves the file at path. names, which may
// be nil, must mean the same to the owner. The errors are ErrNoOwner,
// ErrRefused and stint.ErrNameMismatch. If a process is at the socket but does
// not answer, the error is ErrNoAnswer, too.
func Dial(path string, names stint.Names, opts *DialOptions) (*Guest, error) {
	var o DialOptions
	if opts != nil {
		o = *opts
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("hostlimit: Timeout %v: want more than 0", o.Timeout)
	}
	p, err := placeOf(path)
	if err != nil {
		return nil, err
	}
	c, err := dialConn(p, wire.NamedOf(names), cmp.Or(o.Timeout, defaultTimeout), func(*conn, error) {})
	if err != nil {
		return nil, err
	}
	g := &Guest{conn: c, p: p}
	g.methods = methods{g}
	return g, nil
}

func (g *Guest) do(ctx context.Context, c *wire.Call) error {
	var err error
	if c.Op == wire.OpEach {
		err = each(ctx, g.conn, c, nil)
	} else {
		err = g.conn.do(ctx, c)
	}
	if !errors.Is(err, errMoved) {
		return err
	}
	if g.conn.isClosed() {
		return stint.ErrClosed
	}
	return ErrNoOwner
}

// Owner returns the process that has the file.
func (g *Guest) Owner() OwnerInfo { return OwnerInfo{g.conn.welcome.PID, g.conn.welcome.Began} }

// Labels returns the Names that the owner declared when Dial connected.
func (g *Guest) Labels() map[stint.Name]string {
	labels := make(map[stint.Name]string, len(g.conn.names))
	for _, n := range g.conn.names {
		labels[n.Name] = n.Label
	}
	return labels
}

// Close ends the connection. A second Close does nothing.
func (g *Guest) Close() error {
	g.conn.close()
	return nil
}

package hostlimit

import (
	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

// Dial returns a Limiter that asks the process which has the file at path, and
// never becomes its owner. It is for the commands of operators. names, which may be
// nil, must mean the same to the owner, or the error is stint.ErrNameMismatch; they
// are not declared. The owner's limits apply to a request without a Limit, so
// SetLimits and SetOverrides return errors.ErrUnsupported, and Limits has the Names
// that the owner declared when Dial connected, without limits. After the owner has
// gone, calls return ErrNoOwner. Of the Options only TakeoverTimeout counts, which
// bounds the connecting and each sign of life, and FailOpen.
//
// The errors are ErrNoOwner, ErrRefused and stint.ErrNameMismatch. If a process is
// at the socket but does not answer, the error is ErrNoAnswer, too.
func Dial(path string, names stint.Names, opts *Options) (*Limiter, error) {
	o, p, err := prepare(path, names, opts)
	if err != nil {
		return nil, err
	}
	c, err := dialConn(p, nil, o.TakeoverTimeout, func(*conn, error) {})
	if err != nil {
		return nil, err
	}
	theirs := wire.Call{Op: wire.OpNames}
	if err := c.introduce(&theirs); err != nil {
		return nil, err
	}
	if err := wire.Mismatch(names, theirs.Names); err != nil {
		c.close()
		return nil, err
	}
	for name, spec := range theirs.Names {
		theirs.Names[name] = stint.NameSpec{Label: spec.Label, Limit: stint.Unlimited}
	}
	limits, err := stint.NewLimits(theirs.Names)
	if err != nil {
		c.close()
		return nil, err
	}
	return asking(c, limits, o), nil
}

// asking returns a Limiter that is the guest of an owner, and stays it.
func asking(c *conn, limits *stint.Limits, o Options) *Limiter {
	l := &Limiter{opts: o, closed: make(chan struct{}), dialed: true}
	l.methods = methods{l}
	l.limits.Store(declare(limits))
	l.put(&backend{conn: c, limits: limits})
	return l
}

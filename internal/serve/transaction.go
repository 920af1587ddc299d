package serve

import (
	"slices"
	"strings"
)

// mostQueued bounds what a connection keeps of the commands between MULTI and
// EXEC, in bytes.
const mostQueued = 16 << 10

// transaction is the commands between MULTI and EXEC. As in Redis, EXEC carries
// out each of them, whatever the one before it replied.
type transaction struct {
	queued [][][]byte
	size   int
	wrong  bool // a command was refused, so EXEC carries out none
}

// queue keeps a command until EXEC, and replies QUEUED.
func (c *serveConn) queue(found *servedCommand, command [][]byte) error {
	size := 0
	for _, word := range command {
		size += len(word) + 24 // the slice's header
	}
	var err error
	switch {
	case found == nil:
		err = unknown(strings.ToLower(string(command[0])), command)
	case found.parse == nil && !found.takes(len(command)): // the others check their words themselves
		err = errWrongCount
	case found.name == "stint.wait":
		err = replyError("ERR STINT.WAIT waits, so it cannot be in a transaction")
	case c.transaction.size+size > mostQueued:
		err = replyError("ERR the transaction is too large: EXEC its commands in several")
	}
	if err != nil {
		c.transaction.wrong = true
		return err
	}
	kept := make([][]byte, len(command))
	for i, word := range command {
		kept[i] = slices.Clone(word)
	}
	c.transaction.queued = append(c.transaction.queued, kept)
	c.transaction.size += size
	c.out.Simple("QUEUED")
	return nil
}

func (c *serveConn) multi(_ [][]byte) error {
	if c.transaction != nil {
		return replyError("ERR MULTI calls can not be nested")
	}
	c.transaction = &transaction{}
	return c.done(nil)
}

// exec is EXEC. Commands CL.THROTTLE that follow each other are decided in one
// commit, as in a pipeline.
func (c *serveConn) exec(_ [][]byte) error {
	t := c.transaction
	c.transaction = nil
	switch {
	case t == nil:
		return replyError("ERR EXEC without MULTI")
	case t.wrong:
		return replyError("EXECABORT Transaction discarded because of previous errors.")
	}
	c.out.Array(len(t.queued))
	broken := false // the connection; the rest of the transaction is still carried out
	for _, command := range t.queued {
		if c.do(command); len(c.out.Buf) < mostUnsent {
			continue
		}
		if c.decide(); broken {
			c.out.Buf = c.out.Buf[:0]
		} else {
			broken = c.send() != nil
		}
	}
	c.decide()
	return nil
}

func (c *serveConn) discard(_ [][]byte) error {
	if c.transaction == nil {
		return replyError("ERR DISCARD without MULTI")
	}
	c.transaction = nil
	return c.done(nil)
}

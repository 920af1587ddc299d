package main

import "slices"

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
func (c *serveConn) queue(name string, command [][]byte) {
	size := 0
	for _, word := range command {
		size += len(word) + 24 // the slice's header
	}
	found, ok := servedBy[name]
	switch {
	case !ok:
		c.unknown(name, command)
	case found.do != nil && !found.takes(len(command)): // the others check their words themselves
		c.doing = name
		c.wrongCount()
	case name == "stint.wait":
		c.out.Error("ERR STINT.WAIT waits, so it cannot be in a transaction")
	case c.transaction.size+size > mostQueued:
		c.out.Error("ERR the transaction is too large: EXEC its commands in several")
	default:
		kept := make([][]byte, len(command))
		for i, word := range command {
			kept[i] = slices.Clone(word)
		}
		c.transaction.queued = append(c.transaction.queued, kept)
		c.transaction.size += size
		c.out.Simple("QUEUED")
		return
	}
	c.transaction.wrong = true
}

func (c *serveConn) multi(_ [][]byte) {
	if c.transaction != nil {
		c.out.Error("ERR MULTI calls can not be nested")
		return
	}
	c.transaction = &transaction{}
	c.out.Simple("OK")
}

// exec is EXEC. Commands CL.THROTTLE that follow each other are decided in one
// commit, as in a pipeline.
func (c *serveConn) exec(_ [][]byte) {
	t := c.transaction
	c.transaction = nil
	switch {
	case t == nil:
		c.out.Error("ERR EXEC without MULTI")
	case t.wrong:
		c.out.Error("EXECABORT Transaction discarded because of previous errors.")
	default:
		c.out.Array(len(t.queued))
		broken := false // then the rest is done all the same, and nobody reads the replies
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
	}
}

func (c *serveConn) discard(_ [][]byte) {
	if c.transaction == nil {
		c.out.Error("ERR DISCARD without MULTI")
		return
	}
	c.transaction = nil
	c.out.Simple("OK")
}

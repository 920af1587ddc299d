package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/resp"
)

const (
	// writeTimeout is how long a client may take to read replies before its
	// connection is closed.
	writeTimeout = 10 * time.Second

	// mostUnsent bounds the replies that are collected before they are sent.
	mostUnsent = 16 << 10

	// mostTogether is how many requests are decided in one step.
	mostTogether = 32
)

// serveConn is a connection. A goroutine reads commands, decides those that came
// in one read, and sends the replies before it reads again. So a client that does
// not read its replies is not read either, and others do not wait for it.
type serveConn struct {
	server   *server
	conn     net.Conn
	in       *resp.Reader
	out      resp.Writer
	id       int64
	name     string // by CLIENT SETNAME
	known    bool   // the password was right, or there is none
	quits    bool
	sent     time.Time // when the last replies were, all of them
	begun    bool      // a command has come
	accepted time.Time

	transaction *transaction // between MULTI and EXEC
	commands    int64        // since the last replies were sent

	// The commands CL.THROTTLE and GCRA that are decided next, together.
	throttles []throttle
	requests  []stint.Request
	decisions []stint.Decision

	writeTimeout time.Duration
	measured     func() // for tests: before the replies are sent

	mu sync.Mutex // guards begun, and the deadline of reads once the server ends
}

func newServeConn(s *server, conn net.Conn, id int64) *serveConn {
	c := &serveConn{server: s, conn: conn, id: id, known: s.password == nil, accepted: time.Now(), writeTimeout: writeTimeout}
	c.in = resp.NewReader(conn)
	return c
}

// refuse tells a client that there are too many connections.
func refuse(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second / 10)) // the socket's buffer is empty
	_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
	_ = conn.Close()
}

// serve answers until the client leaves, or the server stops reading.
func (c *serveConn) serve() {
	defer c.server.connected.Add(-1)
	defer context.AfterFunc(c.server.ending, c.stopReading)()
	defer c.close()
	for {
		command, err := c.in.Next()
		switch {
		case err != nil: // a resp.ProtocolError
			c.decide()
			c.out.Error("ERR " + err.Error())
			_ = c.send()
			return
		case command != nil:
			if !c.begun {
				c.begin()
			}
			c.do(command)
			if c.quits || len(c.out.Buf) >= mostUnsent {
				c.decide()
				if c.send() != nil || c.quits {
					return
				}
			}
			continue
		}
		c.decide()
		if c.send() != nil || c.in.Fill() != nil {
			return
		}
	}
}

func (c *serveConn) send() error {
	if len(c.out.Buf) == 0 {
		return nil
	}
	if c.measured != nil {
		c.measured()
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(c.out.Buf)
	if err == nil {
		c.sent = time.Now()
	}
	c.server.commands.Add(c.commands)
	c.commands = 0
	if c.out.Buf = c.out.Buf[:0]; cap(c.out.Buf) > 2*mostUnsent {
		c.out.Buf = nil
	}
	return err
}

// close closes the connection. If input comes after a TCP connection was closed,
// or is unread then, the system resets it, and drops the replies that it has not
// sent yet. So if there were replies just now, close reads on until the client
// leaves or sends nothing for a second, but at most for as long as a client may
// take to read replies. The replies of a Unix socket are with the client already.
func (c *serveConn) close() {
	defer c.conn.Close()
	tcp, ok := c.conn.(*net.TCPConn)
	if !ok || time.Since(c.sent) > time.Second || tcp.CloseWrite() != nil {
		return
	}
	ignored := make([]byte, 4<<10)
	for end := time.Now().Add(c.writeTimeout); time.Now().Before(end); {
		if tcp.SetReadDeadline(time.Now().Add(time.Second)) != nil {
			return
		}
		if _, err := tcp.Read(ignored); err != nil {
			return
		}
	}
}

// Once the server ends, firstCommand is how long it waits for the first command
// of a connection since it was accepted, and lastCommands how long it reads
// what a client over TCP has sent.
const (
	firstCommand = time.Second
	lastCommands = 20 * time.Millisecond
)

// begin notes that the first command has come.
func (c *serveConn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	if c.server.ending.Err() != nil {
		c.endReading()
	}
}

// stopReading ends the connection once the commands that the client has sent are
// read. A client that has just connected may send one first.
func (c *serveConn) stopReading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endReading()
}

// endReading is called with mu. On a Unix socket a client that sends now gets an
// error, and what it has sent before is read. TCP has no such thing.
func (c *serveConn) endReading() {
	if !c.begun {
		_ = c.conn.SetReadDeadline(c.accepted.Add(firstCommand))
		return
	}
	if unix, ok := c.conn.(*net.UnixConn); ok && unix.CloseRead() == nil {
		_ = c.conn.SetReadDeadline(time.Time{})
		return
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(lastCommands))
}

// whileConnected calls wait, and calls cancel if the client leaves first. The
// last command stays valid.
func (c *serveConn) whileConnected(cancel func(), wait func()) {
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			switch err := c.in.FillBehind(); {
			case err == nil:
			case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.ErrShortBuffer): // it sends, so it is there
				return
			default:
				cancel()
				return
			}
		}
	})
	wait()
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	reader.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.ending.Err() != nil {
		c.endReading()
	} else {
		_ = c.conn.SetReadDeadline(time.Time{})
	}
}

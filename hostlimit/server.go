package hostlimit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// drainTime is how long Close waits for guests to read their answers.
const drainTime = 250 * time.Millisecond

var errClosing = errors.New("hostlimit: the owner is closing")

// Server answers the guests of a file's owner.
type Server struct {
	limiter   *stint.Limiter
	listener  net.Listener
	file      os.FileInfo // its user may connect
	maxGuests int
	tell      func(Event)
	began     time.Time

	mu      sync.Mutex
	conns   map[*serverConn]bool
	closing bool
	running sync.WaitGroup
}

// Serve answers guests of the file at path, which l has open. Close the Server
// before l. Serve replaces a socket that is there already, because no other
// process serves a file that this process has.
func Serve(l *stint.Limiter, path string, opts *ServeOptions) (*Server, error) {
	var o ServeOptions
	if opts != nil {
		o = *opts
	}
	if l == nil {
		return nil, errors.New("hostlimit: Serve: no limiter")
	}
	if o.MaxGuests < 0 {
		return nil, fmt.Errorf("hostlimit: MaxGuests %d: want more than 0", o.MaxGuests)
	}
	tell := func(Event) {}
	if o.OnEvent != nil {
		var one sync.Mutex
		tell = func(e Event) {
			one.Lock()
			defer one.Unlock()
			e.Time = time.Now()
			o.OnEvent(e)
		}
	}
	place, err := placeOf(path)
	if err != nil {
		return nil, err
	}
	return serve(l, place, cmp.Or(o.MaxGuests, defaultMaxGuests), tell)
}

func serve(l *stint.Limiter, p place, maxGuests int, tell func(Event)) (*Server, error) {
	file, err := os.Stat(p.file)
	if err != nil {
		return nil, fmt.Errorf("hostlimit: %w", err)
	}
	listener, err := p.listen(file)
	if err != nil {
		return nil, fmt.Errorf("hostlimit: listen on %s: %w", p.socket, err)
	}
	s := &Server{
		limiter: l, listener: listener, file: file, maxGuests: maxGuests, tell: tell, began: l.Now(),
		conns: make(map[*serverConn]bool),
	}
	s.running.Go(s.accept)
	return s, nil
}

// accept takes connections until the listener is closed.
func (s *Server) accept() {
	for {
		nc, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			s.tell(Event{Kind: GuestRefused, Err: err})
			time.Sleep(10 * time.Millisecond)
			continue
		}
		c := newServerConn(s, nc)
		if err := s.admit(c); err != nil {
			s.tell(Event{Kind: GuestRefused, Err: err})
			c.refuse(err)
			continue
		}
		s.running.Go(c.serve)
	}
}

// admit counts a connection, or returns why the owner refuses it.
func (s *Server) admit(c *serverConn) error {
	if err := checkPeer(c.nc, s.file); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return errClosing
	case len(s.conns) >= s.maxGuests:
		return fmt.Errorf("%w: %d guests are connected, as many as MaxGuests allows", ErrRefused, s.maxGuests)
	}
	s.conns[c] = true
	return nil
}

func (s *Server) remove(c *serverConn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// declare adds the Names of a guest that the owner does not declare. Requests
// for them bring their own limits.
func (s *Server) declare(names []named) error {
	all := make(stint.Names)
	for _, n := range names {
		spec := stint.NameSpec{Label: n.label}
		if n.shared {
			spec.ID = stint.Shared
		}
		all[n.name] = spec
	}
	return s.limiter.Declare(all)
}

// Close tells the guests to look for another owner, answers the calls that came
// before, and ends the connections.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	conns := make([]*serverConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	err := s.listener.Close()
	for _, c := range conns {
		go c.leave()
	}
	drained := make(chan struct{})
	go func() {
		s.running.Wait()
		close(drained)
	}()
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-drained:
		return err
	case <-timer.C:
	}
	for _, c := range conns {
		c.out.close(errClosing)
	}
	<-drained
	return err
}

// snapshotWriter sends what is written to it as parts of a reply.
type snapshotWriter func(p []byte) error

func (w snapshotWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), 32<<10)]
		if err := w(part); err != nil {
			return n, err
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, nil
}

var _ io.Writer = snapshotWriter(nil)

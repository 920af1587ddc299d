package hostlimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/events"
)

// checkTime is how often a Server looks whether its file and its socket are
// still at their paths.
const checkTime = 200 * time.Millisecond

// Server answers the guests of a file's owner.
type Server struct {
	limiter   *stint.Limiter
	place     place
	maxGuests int
	events    *events.Queue[Event]
	names     stint.Names     // that the Limiter declared at the beginning
	gone      func(error)     // called once, if another file takes the place of this one
	snapshots chan struct{}   // a place for the copy under way
	ctx       context.Context // ends when the Server closes, with mu locked
	end       context.CancelFunc

	mu      sync.Mutex
	socket  *socket
	conns   map[*serverConn]bool
	running sync.WaitGroup
}

// Serve answers guests of the file at path, which l has open. Close the Server
// before l. Serve replaces a socket that a dead process has left. If another
// program listens there, or if there is a file that is no socket, the error is
// ErrRefused. If another file takes the place of this one, guests leave for the
// process that has the other file. Of the Options, MaxGuests and OnEvent count.
func Serve(l *stint.Limiter, path string, opts *Options) (*Server, error) {
	if l == nil {
		return nil, errors.New("hostlimit: Serve: no limiter")
	}
	o, p, err := prepare(path, l.Limits().Names(), opts)
	if err != nil {
		return nil, err
	}
	unlock, err := p.lock(defaultTimeout)
	defer unlock()
	if err != nil {
		return nil, fmt.Errorf("hostlimit: lock %s: %w", p.socket, err)
	}
	queue := events.New(o.OnEvent)
	s, err := serve(l, p, o.MaxGuests, queue, func(err error) {
		tell(queue, Event{Role: RoleNone, Err: err})
	})
	if err != nil {
		queue.Close()
	}
	return s, err
}

func serve(
	l *stint.Limiter, p place, maxGuests int, queue *events.Queue[Event], gone func(error),
) (*Server, error) {
	so, err := p.listen()
	if err != nil {
		return nil, fmt.Errorf("hostlimit: listen on %s: %w", p.socket, err)
	}
	s := &Server{
		limiter: l, place: p, socket: so, maxGuests: maxGuests, events: queue, gone: gone,
		names: l.Limits().Names(), snapshots: make(chan struct{}, 1), conns: make(map[*serverConn]bool),
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.running.Go(func() { s.accept(so) })
	s.running.Go(s.watch)
	return s, nil
}

// accept takes connections until the socket is closed.
func (s *Server) accept(so *socket) {
	for {
		nc, err := so.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			tell(s.events, Event{Role: RoleOwner, Err: err})
			select {
			case <-time.After(10 * time.Millisecond):
			case <-s.ctx.Done():
			}
			continue
		}
		c := newServerConn(s, nc)
		s.running.Go(func() { c.serve(s.admit(c)) })
	}
}

// admit counts a connection, or returns why the owner refuses it.
func (s *Server) admit(c *serverConn) error {
	if err := s.place.checkGuest(c.nc); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.isClosing():
		return errMoved
	case len(s.conns) >= s.maxGuests:
		return fmt.Errorf("%w: %d guests are connected, as many as MaxGuests allows", ErrRefused, s.maxGuests)
	}
	s.conns[c] = true
	return nil
}

// watch follows what becomes of the file, of the socket and of the clock. If
// another file is at the path, the guests must leave for its owner. If the socket
// was removed, watch makes another one. If the clock has stepped, watch tells the
// guests that make no calls.
func (s *Server) watch() {
	ticker := time.NewTicker(checkTime)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		s.tellTime()
		err := s.limiter.InPlace()
		switch {
		case replaced(err):
			go func() {
				s.shut()
				s.gone(err)
			}()
			return
		case err != nil:
			continue // the Limiter makes a removed file anew
		}
		s.mu.Lock()
		if !s.isClosing() && !s.socket.inPlace() {
			if so, err := s.place.listen(); err == nil {
				s.socket.Close()
				s.socket = so
				s.running.Go(func() { s.accept(so) })
			}
		}
		s.mu.Unlock()
	}
}

// tellTime tells the time to the guests that do not know of the last step of the
// clock. One of them that is stopped holds up no other.
func (s *Server) tellTime() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.behind() && c.telling.CompareAndSwap(false, true) {
			s.running.Go(func() {
				c.tell(wire.Welcome{})
				c.out.Flush()
				c.telling.Store(false)
			})
		}
	}
}

// replaced reports whether an error of InPlace says that another file is at the
// path.
func replaced(err error) bool {
	return errors.Is(err, stint.ErrGone) && !errors.Is(err, fs.ErrNotExist)
}

func (s *Server) isClosing() bool { return s.ctx.Err() != nil }

// Close tells the guests to look for another owner, answers the calls that came
// before, and ends the connections.
func (s *Server) Close() error {
	err := s.shut()
	s.events.Close()
	return err
}

// shut is Close without the last events.
func (s *Server) shut() error {
	s.mu.Lock()
	if s.isClosing() {
		s.mu.Unlock()
		s.running.Wait()
		return nil
	}
	s.end()
	conns := slices.Collect(maps.Keys(s.conns))
	err := s.socket.Close()
	s.mu.Unlock()
	for _, c := range conns {
		go c.leave()
	}
	drained := make(chan struct{})
	go func() {
		s.running.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(drainTime):
		for _, c := range conns {
			c.out.Close(errMoved)
		}
		<-drained
	}
	return err
}

// declareAll declares the Names that guests have said and not used yet, before a
// label gets a number for ever: the label may be one of theirs, and the number must
// not be. The error says why a Name with the label cannot be declared.
func (s *Server) declareAll(label string) error {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		if err := c.declare(); err != nil && c.lacks(label) {
			return err
		}
	}
	return nil
}

// welcome returns what the owner says of itself, without the time.
func (s *Server) welcome() (w wire.Welcome, err error) {
	if err := s.limiter.InPlace(); replaced(err) {
		return w, fmt.Errorf("%w: %w", errMoved, err)
	}
	id, _ := s.place.fileID() // zero if there is no file now
	return wire.Welcome{PID: os.Getpid(), File: id}, nil
}

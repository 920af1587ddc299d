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
	gone      func(*stint.Limiter, error) // called once, if another file takes the place of the one of its Limiter
	snapshots chan struct{}               // a place for the copy under way
	ctx       context.Context             // ends when the Server closes, with mu locked
	end       context.CancelFunc

	declaring sync.Mutex // held while Names of a guest are compared and declared

	mu      sync.Mutex
	socket  *socket
	conns   map[*serverConn]bool
	guests  sync.WaitGroup // the conns; it grows with mu locked, until the Server closes
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
	s, err := serve(l, p, o.MaxGuests, queue, func(_ *stint.Limiter, err error) {
		tell(queue, Event{Role: RoleNone, Err: err})
	})
	if err != nil {
		queue.Close()
	}
	return s, err
}

func serve(
	l *stint.Limiter, p place, maxGuests int, queue *events.Queue[Event], gone func(*stint.Limiter, error),
) (*Server, error) {
	so, err := p.listen()
	if err != nil {
		return nil, fmt.Errorf("hostlimit: listen on %s: %w", p.socket, err)
	}
	s := &Server{
		limiter: l, place: p, socket: so, maxGuests: maxGuests, events: queue, gone: gone,
		snapshots: make(chan struct{}, 1), conns: make(map[*serverConn]bool),
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
			<-time.After(10 * time.Millisecond)
			continue
		}
		c := newServerConn(s, nc)
		s.running.Go(func() {
			err := s.admit(c)
			if err == nil {
				defer s.guests.Done()
			}
			c.serve(err)
		})
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
	s.guests.Add(1)
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
		case replaced(err): // step replaced
			go func() {
				s.shut()
				s.stopListening()
				s.gone(s.limiter, err)
			}()
			return
		case err != nil:
			continue // the Limiter makes a removed file anew: steps copy, link copy
		}
		s.mu.Lock()
		if !s.isClosing() && !s.socket.inPlace() {
			if so, err := s.place.listen(); err == nil { // step listen again
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
	s.shut()
	err := s.stopListening()
	s.events.Close()
	return err
}

// shut ends the connections. The Server goes on listening, and tells those who come
// that it is closing.
func (s *Server) shut() {
	s.mu.Lock()
	if s.isClosing() {
		s.mu.Unlock()
		s.guests.Wait()
		return
	}
	s.end() // step shut
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		go c.leave()
	}
	drained := make(chan struct{})
	go func() {
		s.guests.Wait()
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
}

// stopListening stops listening after shut, and removes the socket. If another
// process has the place's lock, it is becoming the owner, and removes the socket of
// this one itself: without the lock this process could remove that of the next owner.
func (s *Server) stopListening() error {
	unlock, err := s.place.lock(0) // steps open lock to close, lock to close, check lock to close
	defer unlock()                 // steps free lock, freed lock
	if err == nil {
		s.socket.remove() // steps check socket, remove socket
	}
	if err = s.socket.Close(); errors.Is(err, net.ErrClosed) { // by an earlier call; step close socket
		err = nil
	}
	s.running.Wait()
	return err
}

// welcome returns what the owner says of itself, without the time.
func (s *Server) welcome() (w wire.Welcome, err error) {
	if err := s.limiter.InPlace(); replaced(err) { // step hello
		return w, fmt.Errorf("%w: %w", errMoved, err)
	}
	return wire.Welcome{PID: os.Getpid()}, nil
}

// Package netlimit limits the connections of each client, and closes the excess
// ones before it reads a byte. It works with any server that accepts
// connections, such as HTTP, gRPC, SMTP or SSH.
//
//	l, err := net.Listen("tcp", ":443")
//	...
//	l = netlimit.Listener(l, limiter, &netlimit.Options{Rate: PerPeer, InFlight: 50})
//	log.Fatal(server.ServeTLS(l, "", ""))
//
// A connection that is denied costs no TLS handshake, which is most of what a
// flood costs a server. Use netlimit if clients connect directly. Behind a proxy
// every peer is the proxy, so use package httplimit there.
//
// A client whose connection is denied sees a reset, and no reason. Browsers and
// other well-behaved clients should never see one. Set the limits to several
// times what one client needs, because many clients may share an address. With
// rules.LogDenials[netlimit.Peer] in Options.Observers, denials are in the log.
//
// To bound the total number of connections, put
// golang.org/x/net/netutil.LimitListener around the Listener.
package netlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/levels"
	"github.com/stint-go/stint/internal/spell"
	"github.com/stint-go/stint/rules"
)

// Options configure a Listener. With the zero value it denies nothing.
type Options struct {
	// Rate is the Name of a limit of which each connection spends a token. The id
	// is the address of the peer: an IPv4 address, also of a peer behind NAT64, or the
	// /64 network of an IPv6 address, as in httplimit.ByIP. 0 means no such limit.
	//
	// At Memory and Flushed, Accept decides. At Leased and Synced, a
	// decision may wait for the disk, and a Decider that is no
	// *stint.Limiter may wait for another process. The connection then decides in
	// its first Read or Write. If that is denied, it returns an error that wraps
	// ErrDenied, which the server reports, as http.Server does in its ErrorLog.
	// Against floods choose Memory or Flushed.
	Rate stint.Name

	// InFlight bounds the open connections of each peer; 0 means no bound. A
	// connection has its place until Close. Only this Listener counts.
	InFlight int

	// Exempt are the networks whose connections always pass, such as those of
	// health checks.
	Exempt []netip.Prefix

	// FailOpen lets connections pass if the Limiter returns an error.
	FailOpen bool

	// Observers receive every decision and error, such as rules.LogDenials[Peer].
	// Those of the bound InFlight have the label "connections". Observers must not
	// block.
	Observers []rules.Observer[Peer]
}

// A Peer is the client of a connection.
type Peer struct {
	Addr net.Addr // of the connection
	ID   string   // IPv4 address, or /64 network of an IPv6 address
}

// Context is that of no request.
func (Peer) Context() context.Context { return context.Background() }

// ErrDenied is why a connection was closed.
var ErrDenied = errors.New("netlimit: too many connections")

// Listener returns a listener whose Accept closes connections that a limit
// denies, with a reset, and goes on with the next one. Nil options deny nothing.
// Connections that are not from an IP address, such as those of Unix sockets,
// pass. It panics without a Limiter if Rate is set, and if InFlight is negative.
func Listener(l net.Listener, lim stint.Decider, opts *Options) net.Listener {
	ln := &listener{Listener: l}
	if opts != nil {
		ln.opts = *opts
		ln.opts.Exempt = make([]netip.Prefix, 0, len(opts.Exempt))
		for _, p := range opts.Exempt {
			ln.opts.Exempt = append(ln.opts.Exempt, spell.Network(p))
		}
	}
	of := &rules.Options[Peer]{FailOpen: ln.opts.FailOpen, Observers: ln.opts.Observers}
	if ln.opts.Rate != 0 {
		ln.rate = rules.New(lim, of, rule{Key: keyOf(ln.opts.Rate)})
		ln.local, _ = lim.(*stint.Limiter)
	}
	if ln.opts.InFlight != 0 {
		ln.open = new(unlimited)
		ln.places = rules.New(ln.open, of, rule{Key: keyOf(connections), InFlight: int64(ln.opts.InFlight)})
	}
	return ln
}

type rule = rules.Rule[Peer, struct{}]

func keyOf(name stint.Name) rules.KeyFunc[Peer] {
	return func(p Peer) (stint.Key, error) { return name.Key(p.ID), nil }
}

// connections is the Name of the bound InFlight.
const connections stint.Name = 1

// connectionLimits has no mistake that could be an error.
var connectionLimits, _ = stint.NewLimits(stint.Names{connections: {Label: "connections", Limit: stint.Unlimited}})

// unlimited is a Decider of a Listener's own, for the bound InFlight: only this
// Listener counts, and Accept never waits for it. The Decider in it is nil, because a
// door with one rule asks for nothing else.
type unlimited struct{ stint.Decider }

func (u *unlimited) Limits() *stint.Limits { return connectionLimits }

func (u *unlimited) Do(_ context.Context, reqs []stint.Request, _ []stint.Decision) (stint.Decision, error) {
	return stint.Decision{Key: reqs[0].Key, Limit: stint.Unlimited, Allowed: true, Remaining: math.MaxInt64}, nil
}

type listener struct {
	net.Listener
	opts   Options
	rate   *rules.Door[Peer, struct{}] // nil without Rate
	local  *stint.Limiter              // the Limiter of rate, if it is one
	places *rules.Door[Peer, struct{}] // nil without InFlight
	open   *unlimited                  // of places
}

// Accept implements net.Listener.
func (ln *listener) Accept() (net.Conn, error) {
	for {
		conn, err := ln.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if passed := ln.admit(conn); passed != nil {
			return passed, nil
		}
	}
}

// admit returns the connection for the server, or closes it and returns nil.
func (ln *listener) admit(conn net.Conn) net.Conn {
	addr := peerOf(conn.RemoteAddr())
	if !addr.IsValid() || slices.ContainsFunc(ln.opts.Exempt, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return conn
	}
	c := &limitedConn{Conn: conn, ln: ln, peer: Peer{conn.RemoteAddr(), idOf(addr)}}
	if ln.places != nil {
		place, d, err := ln.places.Begin(c.peer)
		if err != nil || !d.Allowed {
			place.Leave()
			reset(conn)
			return nil
		}
		c.place = place
	}
	later := ln.rate != nil && ln.waits(c.peer)
	if !later && c.decide() != nil {
		return nil
	}
	if !later && c.place == nil {
		return conn
	}
	if tcp, ok := conn.(tcpMethods); ok {
		return &tcpConn{c, tcp}
	}
	return c
}

// waits reports whether a decision may wait for the disk or another process.
func (ln *listener) waits(peer Peer) bool {
	if ln.local == nil || ln.commits(ln.opts.Rate.Key(peer.ID)) {
		return true
	}
	// If the limit takes only addresses, the id of a network is its first one.
	network, err := netip.ParsePrefix(peer.ID)
	return err == nil && ln.commits(ln.opts.Rate.IP(network.Addr()))
}

// commits reports whether a spend from a bucket may wait for a commit.
func (ln *listener) commits(key stint.Key) bool {
	return levels.MayWait(ln.local.Limits(), &stint.Request{Key: key}, ln.local.Durability())
}

// reset closes a connection without an answer, and without a state in which it
// lingers.
func reset(conn net.Conn) {
	if c, ok := conn.(interface{ SetLinger(int) error }); ok {
		c.SetLinger(0) // otherwise it is closed without a reset
	}
	conn.Close()
}

func idOf(peer netip.Addr) string {
	if peer.Is4() {
		return peer.String()
	}
	p, _ := peer.Prefix(64) // valid for each IPv6 address
	return p.String()
}

// peerOf returns the address of a peer, which is not valid if it is not an IP
// address.
func peerOf(addr net.Addr) netip.Addr {
	var at netip.AddrPort
	if tcp, ok := addr.(*net.TCPAddr); ok {
		at = tcp.AddrPort()
	} else if addr != nil && addr.Network() != "unix" {
		at, _ = netip.ParseAddrPort(addr.String())
	}
	return spell.Address(at.Addr())
}

// limitedConn is a connection with a place, or whose first Read decides.
type limitedConn struct {
	net.Conn
	ln    *listener
	peer  Peer
	place *rules.Pass[Peer, struct{}] // nil if it has none

	left   sync.Once // the place
	once   sync.Once
	denied error // set by once
}

// Read implements net.Conn. The first Read decides, if Accept would have had to
// wait.
func (c *limitedConn) Read(p []byte) (int, error) {
	if err := c.decide(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn. In protocols in which the server speaks first, the
// first Write decides.
func (c *limitedConn) Write(p []byte) (int, error) {
	if err := c.decide(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// decide takes a token of the peer once, if there is a Rate. The error says why the
// connection is denied.
func (c *limitedConn) decide() error {
	c.once.Do(func() {
		if c.ln.rate == nil {
			return
		}
		p, d, err := c.ln.rate.Begin(c.peer)
		if p.Leave(); err == nil && !d.Allowed {
			err = fmt.Errorf("%w: of %s", ErrDenied, c.peer.ID)
		}
		if err != nil {
			c.denied = err
			reset(c.Conn)
			c.leave()
		}
	})
	return c.denied
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}

func (c *limitedConn) leave() { c.left.Do(c.place.Leave) }

// NetConn returns the connection that the Listener has wrapped. The one who
// closes it keeps its place: close the limited one, too.
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

// tcpMethods are the methods of *net.TCPConn that servers look for, and that
// limitedConn does not have.
type tcpMethods interface {
	CloseRead() error
	CloseWrite() error
	SyscallConn() (syscall.RawConn, error)
	File() (*os.File, error)
	SetKeepAlive(bool) error
	SetKeepAlivePeriod(time.Duration) error
	SetLinger(int) error
	SetNoDelay(bool) error
}

// tcpConn is a limitedConn with the methods of the wrapped one.
type tcpConn struct {
	*limitedConn
	tcpMethods
}

// ReadFrom lets net/http send a file by sendfile.
func (c *tcpConn) ReadFrom(src io.Reader) (int64, error) {
	if err := c.decide(); err != nil {
		return 0, err
	}
	return io.Copy(c.Conn, src)
}

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
// times what one client needs, because many clients may share an address.
//
// To bound the total number of connections, put
// golang.org/x/net/netutil.LimitListener around the Listener.
package netlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/clientid"
	"github.com/stint-go/stint/internal/places"
)

// Options configure a Listener. With the zero value it denies nothing.
type Options struct {
	// Rate is the Name of a limit of which each connection spends a token. The id
	// is the address of the peer: an IPv4 address, or the /64 network of an IPv6
	// address. 0 means no such limit.
	//
	// At Memory and Flushed, Accept decides. At Leased and Synced a decision may
	// wait for the disk, and a Decider that is no *stint.Limiter may wait for
	// another process. The connection then decides in its first Read or Write. If
	// that is denied, it returns an error that wraps ErrDenied, which the server
	// reports, as http.Server does in its ErrorLog. Against floods choose Memory or
	// Flushed.
	Rate stint.Name

	// InFlight bounds the open connections of each peer; 0 means no bound. A
	// connection has its place until Close. Only this Listener counts.
	InFlight int

	// Exempt are the networks whose connections always pass, such as those of
	// health checks.
	Exempt []netip.Prefix

	// Denied is called with the address of a connection that was closed, and why:
	// the error wraps ErrDenied, or is that of the Limiter. It is called at most
	// once for each peer and second; a *DeniedError then has the number of
	// connections that were left out. It must not block.
	Denied func(net.Addr, error)

	// FailOpen lets connections pass if the Limiter returns an error.
	FailOpen bool
}

// ErrDenied is why a connection was closed.
var ErrDenied = errors.New("netlimit: too many connections")

// A DeniedError says why a connection was closed.
type DeniedError struct {
	Peer    string // id of the peer
	Omitted int    // closed connections of the peer since the last report
	Err     error  // ErrDenied, or an error of the Limiter
}

func (e *DeniedError) Error() string {
	if e.Omitted > 0 {
		return fmt.Sprintf("%v: of %s, and %d more", e.Err, e.Peer, e.Omitted)
	}
	return fmt.Sprintf("%v: of %s", e.Err, e.Peer)
}

// Unwrap returns Err.
func (e *DeniedError) Unwrap() error { return e.Err }

// Listener returns a listener whose Accept closes connections that a limit
// denies, with a reset, and goes on with the next one. Nil options deny nothing.
// Connections that are not from an IP address, such as those of Unix sockets,
// pass. It panics without a Limiter if Rate is set, and if InFlight is negative.
func Listener(l net.Listener, lim stint.Decider, opts *Options) net.Listener {
	ln := &listener{Listener: l, lim: lim, places: places.NewTable[netip.Addr](), reports: make(map[netip.Addr]*report)}
	if opts != nil {
		ln.opts = *opts
		ln.opts.Exempt = make([]netip.Prefix, 0, len(opts.Exempt))
		for _, p := range opts.Exempt {
			ln.opts.Exempt = append(ln.opts.Exempt, unmapped(p))
		}
	}
	if ln.opts.Rate != 0 && isMissing(lim) {
		panic("netlimit: Listener: a Rate without a Limiter")
	}
	if ln.opts.InFlight < 0 {
		panic(fmt.Sprintf("netlimit: Listener: InFlight is %d, want 0 or more", ln.opts.InFlight))
	}
	ln.local, _ = lim.(*stint.Limiter)
	return ln
}

// isMissing reports whether there is no Limiter, or a nil one of any type.
func isMissing(lim stint.Decider) bool {
	v := reflect.ValueOf(lim)
	return lim == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// unmapped returns a network of IPv4 addresses as such, if it is written as
// IPv6: peers have no IPv4-mapped addresses.
func unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

type listener struct {
	net.Listener
	lim    stint.Decider
	local  *stint.Limiter // lim, if it is one
	opts   Options
	names  clientid.Names
	places *places.Table[netip.Addr]

	mu      sync.Mutex // guards the rest
	reports map[netip.Addr]*report
}

// report is the last report on a peer.
type report struct {
	at      time.Time
	omitted int
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
	peer, ok := peerOf(conn.RemoteAddr())
	if !ok || ln.exempt(peer) {
		return conn
	}
	peer = network(peer)
	c := &limitedConn{Conn: conn, ln: ln, peer: peer}
	later := ln.opts.Rate != 0 && ln.waits(peer)
	if ln.opts.InFlight > 0 {
		c.place, _ = ln.places.Enter(context.Background(), peer, places.Bound{Most: int64(ln.opts.InFlight)})
		if !c.place.Taken() {
			ln.deny(conn, peer, ErrDenied)
			return nil
		}
	}
	if !later {
		var err error
		c.decided.Do(func() { err = ln.spend(peer) })
		if err != nil {
			c.leave()
			ln.deny(conn, peer, err)
			return nil
		}
	}
	if !later && !c.place.Taken() {
		return conn
	}
	return withMethods(c)
}

func (ln *listener) exempt(peer netip.Addr) bool {
	for _, p := range ln.opts.Exempt {
		if p.Contains(peer) {
			return true
		}
	}
	return false
}

// waits reports whether a decision may wait for the disk or another process.
func (ln *listener) waits(peer netip.Addr) bool {
	if ln.local == nil {
		return true
	}
	key, _ := ln.key(peer)
	limit, _ := ln.local.Limits().For(key)
	level := limit.Durability
	if level == 0 {
		level = ln.local.Durability()
	}
	return level >= stint.Leased
}

// key returns the bucket of a peer.
func (ln *listener) key(peer netip.Addr) (stint.Key, error) {
	return clientid.Key(ln.names.Of(ln.lim), ln.opts.Rate.Key(idOf(peer)), false, false)
}

// spend takes a token of a peer, if there is a Rate. The error says why the
// connection is denied.
func (ln *listener) spend(peer netip.Addr) error {
	if ln.opts.Rate == 0 {
		return nil
	}
	var d stint.Decision
	key, err := ln.key(peer)
	if err == nil {
		d, err = ln.lim.Do(context.Background(), []stint.Request{key.Cost(1)}, nil)
	}
	switch {
	case err != nil && !ln.opts.FailOpen:
		return err
	case err == nil && !d.Allowed:
		return ErrDenied
	}
	return nil
}

// deny closes a connection with a reset, and reports it.
func (ln *listener) deny(conn net.Conn, peer netip.Addr, why error) {
	addr := conn.RemoteAddr()
	reset(conn)
	ln.report(addr, peer, why)
}

// reset closes a connection without an answer, and without a state in which it
// lingers.
func reset(conn net.Conn) {
	if c, ok := conn.(interface{ SetLinger(int) error }); ok {
		c.SetLinger(0) // otherwise it is closed without a reset
	}
	conn.Close()
}

const (
	reportEvery = time.Second
	maxReports  = 1 << 14 // peers of which the last report is known
)

// report tells the operator that a connection was closed, unless it did so for
// the same peer within a second.
func (ln *listener) report(addr net.Addr, peer netip.Addr, why error) {
	if ln.opts.Denied == nil {
		return
	}
	now := time.Now()
	ln.mu.Lock()
	r := ln.reports[peer]
	if r != nil && now.Sub(r.at) < reportEvery {
		r.omitted++
		ln.mu.Unlock()
		return
	}
	if r == nil {
		if len(ln.reports) >= maxReports {
			ln.sweepLocked(now)
		}
		r = new(report)
		ln.reports[peer] = r
	}
	omitted := r.omitted
	r.at, r.omitted = now, 0
	ln.mu.Unlock()
	ln.opts.Denied(addr, &DeniedError{Peer: idOf(peer), Omitted: omitted, Err: why})
}

// sweepLocked forgets reports. Of many peers in one second it forgets all.
func (ln *listener) sweepLocked(now time.Time) {
	for peer, r := range ln.reports {
		if now.Sub(r.at) >= reportEvery {
			delete(ln.reports, peer)
		}
	}
	if len(ln.reports) >= maxReports/2 {
		clear(ln.reports)
	}
}

func idOf(peer netip.Addr) string {
	if peer.Is4() {
		return peer.String()
	}
	return netip.PrefixFrom(peer, 64).String()
}

// peerOf returns the address of a peer.
func peerOf(addr net.Addr) (netip.Addr, bool) {
	switch a := addr.(type) {
	case *net.TCPAddr:
		peer := a.AddrPort().Addr().Unmap().WithZone("")
		return peer, peer.IsValid()
	case nil:
		return netip.Addr{}, false
	}
	at, err := netip.ParseAddrPort(addr.String())
	return at.Addr().Unmap().WithZone(""), err == nil && addr.Network() != "unix"
}

// network returns an IPv4 address, or the first address of an IPv6 address's
// /64.
func network(peer netip.Addr) netip.Addr {
	if peer.Is4() {
		return peer
	}
	p, _ := peer.Prefix(64) // valid for each IPv6 address
	return p.Addr()
}

// limitedConn is a connection with a place, or whose first Read decides.
type limitedConn struct {
	net.Conn
	ln    *listener
	peer  netip.Addr
	place places.Place[netip.Addr]
	left  atomic.Bool

	decided sync.Once
	denied  atomic.Pointer[DeniedError] // why the connection was closed; nil otherwise
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

func (c *limitedConn) decide() error {
	c.decided.Do(func() {
		if err := c.ln.spend(c.peer); err != nil {
			c.denied.Store(&DeniedError{Peer: idOf(c.peer), Err: err})
			addr := c.RemoteAddr()
			reset(c.Conn)
			c.leave()
			c.ln.report(addr, c.peer, err)
		}
	})
	if err := c.denied.Load(); err != nil {
		return err
	}
	return nil
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}

// leave gives the place back, once.
func (c *limitedConn) leave() {
	if !c.left.Swap(true) && c.place.Taken() {
		c.place.Leave()
	}
}

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

// tcpConn is a limitedConn with these methods.
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

// withMethods returns the connection with the methods that the wrapped one has.
func withMethods(c *limitedConn) net.Conn {
	if conn, ok := c.Conn.(tcpMethods); ok {
		return &tcpConn{c, conn}
	}
	return c
}

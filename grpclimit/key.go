package grpclimit

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// ByPeer finds the bucket of the client's address, as Options.Client says: that
// of the connection's peer, or the one that a trusted proxy has written into the
// metadata. An IPv6 client is its /64 network, and one on a Unix socket has the
// id "unix", as in httplimit. A peer without an address, such as one in the same
// process, has no id.
func ByPeer(name stint.Name) KeyFunc {
	return func(c Call) (stint.Key, error) {
		p, ok := peer.FromContext(c.Ctx)
		if !ok || p.Addr == nil || c.server == nil {
			return stint.Key{}, rules.ErrNoID
		}
		key, err := c.server.address(c.Ctx, p.Addr)
		key.Name = name
		return key, err
	}
}

// requests are of calls, for httplimit.ClientAddress.
var requests = sync.Pool{New: func() any { return &http.Request{Header: make(http.Header)} }}

// address returns the key of a client's address, with the Name 0.
func (s *server) address(ctx context.Context, of net.Addr) (stint.Key, error) {
	r := requests.Get().(*http.Request)
	defer requests.Put(r)
	switch a := of.(type) {
	case *net.TCPAddr:
		r.RemoteAddr = a.AddrPort().Addr().Unmap().String() // the port costs time
	default:
		r.RemoteAddr = a.String()
	}
	if s.proxyField != "" {
		r.Header[s.proxyField] = metadata.ValueFromIncomingContext(ctx, strings.ToLower(s.proxyField))
	}
	if isUnix(of) {
		return s.byIP(r.WithContext(context.WithValue(ctx, http.LocalAddrContextKey, of)))
	}
	return s.byIP(r)
}

func isUnix(a net.Addr) bool {
	_, ok := a.(*net.UnixAddr)
	return ok
}

// ByMetadata finds the bucket of a value in the metadata that a client sent, such
// as an API key. A call without the value, or with more than one, has no id.
func ByMetadata(name stint.Name, key string) KeyFunc {
	return func(c Call) (stint.Key, error) {
		values := metadata.ValueFromIncomingContext(c.Ctx, key)
		if len(values) != 1 {
			return stint.Key{}, rules.ErrNoID
		}
		return keyOf(name, values[0])
	}
}

// ByTLSSubject finds the bucket of the subject of the client's certificate, such
// as "CN=billing,O=Example". A call without a certificate that the server has
// verified has no id.
func ByTLSSubject(name stint.Name) KeyFunc {
	return func(c Call) (stint.Key, error) {
		subject := ""
		if p, ok := peer.FromContext(c.Ctx); ok {
			info, _ := p.AuthInfo.(credentials.TLSInfo)
			if chains := info.State.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 {
				subject = chains[0][0].Subject.String()
			}
		}
		return keyOf(name, subject)
	}
}

// ByTarget finds the bucket of the server that a client calls: the target of its
// ClientConn, such as "dns:///api.example.com:443".
func ByTarget(name stint.Name) KeyFunc {
	return func(c Call) (stint.Key, error) { return keyOf(name, c.Target) }
}

// keyOf returns the bucket of an id, unless that is empty.
func keyOf(name stint.Name, id string) (stint.Key, error) {
	if id == "" {
		return stint.Key{}, rules.ErrNoID
	}
	return name.Key(id), nil
}

// Single finds the one bucket of a limit whose IDFormat is stint.Single.
func Single(name stint.Name) KeyFunc {
	return func(Call) (stint.Key, error) { return name.Key(""), nil }
}

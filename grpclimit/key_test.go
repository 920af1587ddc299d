package grpclimit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/httplimit"
)

// keysOf returns the keys that spent.
func keysOf(t testing.TB, lim *stint.Limiter, name stint.Name) (keys []stint.Key) {
	t.Helper()
	for b, err := range lim.Buckets(name) {
		require.NoError(t, err)
		keys = append(keys, b.Key)
	}
	return keys
}

func TestByPeer(t *testing.T) {
	proxied := httplimit.ClientAddress{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	forwarded := proxied
	forwarded.Field = "Forwarded"
	for name, c := range map[string]struct {
		network, address string
		client           httplimit.ClientAddress
		sent             []string
		limit            stint.Name
		want             string
		code             codes.Code
	}{
		"IPv4":                 {want: "127.0.0.1"},
		"IPv6":                 {address: "[::1]:0", want: "::/64"},
		"IPv6, addresses only": {address: "[::1]:0", limit: perIP, want: "::"},
		"untrusted field":      {sent: []string{"x-forwarded-for", "203.0.113.9"}, want: "127.0.0.1"},
		"X-Forwarded-For":      {client: proxied, sent: []string{"x-forwarded-for", "203.0.113.9, 198.51.100.66"}, want: "198.51.100.66"},
		"two lines":            {client: proxied, sent: []string{"x-forwarded-for", "203.0.113.9", "x-forwarded-for", "198.51.100.66"}, want: "198.51.100.66"},
		"Forwarded":            {client: forwarded, sent: []string{"forwarded", `for="[2001:db8::1]"`}, want: "2001:db8::/64"},
		"Unix":                 {network: "unix", want: "unix"},
		"Unix, addresses only": {network: "unix", limit: perIP, want: "unix"},
		"trusted Unix": {network: "unix", client: httplimit.ClientAddress{TrustUnix: true},
			sent: []string{"x-forwarded-for", "198.51.100.66"}, want: "198.51.100.66"},
		"trusted Unix, no field": {network: "unix", client: httplimit.ClientAddress{TrustUnix: true}, want: "unix"},
		"in process":             {network: "bufconn", code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			if c.limit == 0 {
				c.limit = perAddress
			}
			opts := limited(lim, &grpclimit.Options{Client: c.client}, grpclimit.Rule{Key: grpclimit.ByPeer(c.limit)})
			var client pb.TestServiceClient
			switch c.network {
			case "unix":
				path := filepath.Join(t.TempDir(), "s")
				serveOn(t, listen(t, "unix", path), new(service), opts...)
				client = dial(t, "unix:"+path)
			case "bufconn":
				l := bufconn.Listen(1 << 16)
				serveOn(t, l, new(service), opts...)
				client = dial(t, "passthrough:///x", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.Dial() }))
			default:
				if c.address == "" {
					c.address = "127.0.0.1:0"
				}
				l, err := net.Listen("tcp", c.address)
				if err != nil {
					t.Skip(err)
				}
				serveOn(t, l, new(service), opts...)
				client = dial(t, l.Addr().String())
			}
			for range 2 {
				require.Equal(t, c.code, status.Code(call(t, client, c.sent...)))
			}
			if c.code == ok {
				assert.Equal(t, []stint.Key{c.limit.Key(c.want)}, keysOf(t, lim, c.limit))
			}
		})
	}
}

// certificate returns a certificate that its own key, or that of a CA, signed.
func certificate(t testing.TB, subject pkix.Name, ca *tls.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: ca == nil, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, any(key)
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// The subject counts only if the server has verified the certificate.
func TestByTLSSubject(t *testing.T) {
	ca := certificate(t, pkix.Name{CommonName: "ca"}, nil)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	server := certificate(t, pkix.Name{CommonName: "server"}, ca)
	client := certificate(t, pkix.Name{CommonName: "billing", Organization: []string{"Example"}}, ca)
	self := certificate(t, pkix.Name{CommonName: "billing", Organization: []string{"Example"}}, nil)
	for name, c := range map[string]struct {
		auth   tls.ClientAuthType
		client *tls.Certificate
		cas    *x509.CertPool
		want   codes.Code
	}{
		"verified":   {tls.RequireAndVerifyClientCert, client, pool, ok},
		"unverified": {tls.RequireAnyClientCert, self, nil, codes.InvalidArgument},
		"none":       {tls.VerifyClientCertIfGiven, nil, pool, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			opts := append(limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByTLSSubject(perKey)}),
				grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{*server}, ClientAuth: c.auth, ClientCAs: c.cas})))
			config := &tls.Config{RootCAs: pool}
			if c.client != nil {
				config.Certificates = []tls.Certificate{*c.client}
			}
			cc, err := grpc.NewClient(serve(t, new(service), opts...), grpc.WithTransportCredentials(credentials.NewTLS(config)))
			require.NoError(t, err)
			defer cc.Close()
			_, err = pb.NewTestServiceClient(cc).EmptyCall(t.Context(), &pb.Empty{})
			assert.Equal(t, c.want, status.Code(err), "%v", err)
			if c.want == ok {
				assert.Equal(t, []stint.Key{perKey.Key("CN=billing,O=Example")}, keysOf(t, lim, perKey))
			}
		})
	}
}

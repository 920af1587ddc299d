package main

import (
	"io"
	"net"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/net/publicsuffix"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
	"github.com/stint-go/stint/limitsfile"
	"github.com/stint-go/stint/netlimit"
)

// begin starts a server on the loopback interface, and returns its address and a
// function that stops it.
func begin(t *testing.T, file string) (addr string, stop func()) {
	limits, err := limitsfile.Load(names, "limits.yml")
	require.NoError(t, err)
	limiter, err := stint.Open(file, limits, nil)
	require.NoError(t, err)
	config, err := configOf(limiter, "secret")
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(netlimit.Listener(l, limiter, &netlimit.Options{Rate: Connections}), config)
	}()
	return l.Addr().String(), func() {
		l.Close()
		<-done
		require.NoError(t, limiter.Close())
	}
}

// login returns what the server says to ada.
func login(addr, password string) (string, error) {
	client, err := ssh.Dial("tcp", addr, &ssh.ClientConfig{
		User: "ada", Auth: []ssh.AuthMethod{ssh.Password(password)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return "", err
	}
	defer client.Close()
	session, requests, err := client.OpenChannel("session", nil)
	if err != nil {
		return "", err
	}
	go ssh.DiscardRequests(requests)
	said, err := io.ReadAll(session)
	return string(said), err
}

func TestWrongPasswords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ssh.db")
	addr, stop := begin(t, file)
	for range 7 { // a right password forgives
		_, err := login(addr, "guess")
		require.Error(t, err)
		said, err := login(addr, "secret")
		require.NoError(t, err)
		require.Equal(t, "hello ada\r\n", said)
	}
	for range 5 {
		_, err := login(addr, "guess")
		require.Error(t, err)
	}
	stop()

	addr, stop = begin(t, file)
	defer stop()
	_, err := login(addr, "secret")
	require.Error(t, err, "five wrong passwords deny the right one, also after a restart")
}

func TestPage(t *testing.T) {
	limits, err := limitsfile.Load(names, "limits.yml")
	require.NoError(t, err)
	limiter, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer limiter.Close()
	w := httptest.NewRecorder()
	page(limiter).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Header().Get("RateLimit"), "r=99")
}

// A program keeps its own versions of the libraries that it shares with nothing
// of stint's.
func TestVersions(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "golang.org/x/crypto", "golang.org/x/net").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "golang.org/x/crypto v0.8.0\ngolang.org/x/net v0.9.0\n", string(out))
}

// The list of public suffixes is the program's, in any version.
func TestDomain(t *testing.T) {
	format := idformat.Domain(publicsuffix.List)
	for id, want := range map[string]string{
		"Example.co.uk": "example.co.uk", "letsencrypt.org": "letsencrypt.org", "me.github.io": "me.github.io",
		"co.uk": "", "github.io": "", "www.example.co.uk": "", "uk": "",
	} {
		canonical, err := format.Canonical(id)
		require.Equal(t, want, canonical, id)
		require.Equal(t, want == "", err != nil, id)
	}
}

// Command sshserver is a small SSH server. It closes excess connections before
// their handshake, and an address with five wrong passwords in ten minutes is
// denied, also after a restart. Its web page, which says who may log in, has a
// limit, too.
//
//	go run . -password secret
//	ssh -p 2222 ada@localhost
package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/crypto/ssh"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/limitsfile"
	"github.com/stint-go/stint/netlimit"
)

const (
	Connections stint.Name = 1 + iota
	FailedPasswords
	Pages
)

var names = stint.Names{
	Connections:     {Label: "ConnectionsPerAddress"},
	FailedPasswords: {Label: "FailedPasswordsPerAddress", IDs: stint.IPAddress},
	Pages:           {Label: "PagesPerAddress"},
}

func main() {
	file := flag.String("file", "ssh.db", "file that remembers what was used")
	limitsPath := flag.String("limits", "limits.yml", "file of limits")
	password := flag.String("password", "", "the password of all users")
	flag.Parse()
	if *password == "" {
		log.Fatal("no password: use -password")
	}
	limits, err := limitsfile.Load(names, *limitsPath)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := stint.Open(*file, limits, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	config, err := configOf(limiter, *password)
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.ListenAndServe("localhost:8080", page(limiter))) }()
	l, err := net.Listen("tcp", ":2222")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(serve(netlimit.Listener(l, limiter, &netlimit.Options{Rate: Connections, InFlight: 10}), config))
}

var errTooMany = errors.New("too many wrong passwords from this address")

// configOf returns the configuration of a server that counts wrong passwords.
func configOf(limiter *stint.Limiter, password string) (*ssh.ServerConfig, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{
		PasswordCallback: func(conn ssh.ConnMetadata, given []byte) (*ssh.Permissions, error) {
			peer, err := netip.ParseAddrPort(conn.RemoteAddr().String())
			if err != nil {
				return nil, err
			}
			// Take the token before the password is compared, so that no number of
			// connections at once can try more than the limit admits.
			failed := FailedPasswords.IP(peer.Addr())
			d, err := limiter.Spend(failed, 1)
			switch {
			case err != nil:
				return nil, err
			case !d.Allowed:
				return nil, errTooMany
			case subtle.ConstantTimeCompare(given, []byte(password)) == 0:
				return nil, errors.New("wrong password")
			}
			return nil, limiter.Reset(failed) // who knows the password has failed at nothing
		},
	}
	config.AddHostKey(signer)
	return config, nil
}

// serve greets each user, until the listener closes.
func serve(l net.Listener, config *ssh.ServerConfig) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go greet(conn, config)
	}
}

func greet(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return // also a denial: the client has been told
	}
	defer server.Close()
	go ssh.DiscardRequests(requests)
	for asked := range channels {
		if asked.ChannelType() != "session" {
			asked.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := asked.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		fmt.Fprintf(channel, "hello %s\r\n", server.User())
		channel.Close()
	}
}

// page returns the handler of the web page.
func page(limiter *stint.Limiter) http.Handler {
	limit := httplimit.Middleware(limiter, nil, httplimit.Rule{Key: httplimit.ByIP(Pages)})
	return limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "log in with ssh -p 2222\n")
	}))
}

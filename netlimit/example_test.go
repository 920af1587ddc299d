package netlimit_test

import (
	"fmt"
	"log"
	"net"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/netlimit"
)

// Connections of one peer: three at once, and 50 open. Any server accepts from
// the listener, with TLS or without.
func Example() {
	const PerPeer stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{PerPeer: {Label: "connections", Limit: stint.PerMinute(3)}})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := stint.New(stint.NewMemStore(), limits, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	l = netlimit.Listener(l, limiter, &netlimit.Options{Rate: PerPeer, InFlight: 50})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "hello")
			conn.Close()
		}
	}()
	for range 4 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			fmt.Println("reset")
			continue
		}
		greeting := make([]byte, 5)
		if _, err := conn.Read(greeting); err != nil {
			fmt.Println("reset")
		} else {
			fmt.Println(string(greeting))
		}
		conn.Close()
	}
	l.Close()
	// Output:
	// hello
	// hello
	// hello
	// reset
}

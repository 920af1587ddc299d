package hostlimit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
)

const LoginsPerAddress stint.Name = 1

var names = stint.Names{LoginsPerAddress: {Label: "LoginsPerAddress", IDs: stint.IPAddress, Limit: stint.PerHour(5)}}

// temporary returns the path of a file that does not exist yet.
func temporary() (path string, remove func()) {
	folder, err := os.MkdirTemp("", "host")
	if err != nil {
		panic(err)
	}
	return filepath.Join(folder, "logins.db"), func() { os.RemoveAll(folder) }
}

// The second Limiter may be in this process or in any other one.
func ExampleOpen() {
	path, remove := temporary()
	defer remove()
	limits, _ := stint.NewLimits(names)

	first, err := hostlimit.Open(path, limits, nil)
	if err != nil {
		panic(err)
	}
	second, err := hostlimit.Open(path, limits, nil)
	if err != nil {
		panic(err)
	}
	key := LoginsPerAddress.Key("10.0.0.1")
	for _, l := range []*hostlimit.Limiter{first, second, second} {
		d, err := l.Spend(key, 1)
		fmt.Println(l.Role(), d.Allowed, d.Remaining, err)
	}
	first.Close()
	d, err := second.Spend(key, 1)
	fmt.Println(second.Role(), d.Allowed, d.Remaining, err)
	second.Close()
	// Output:
	// owner true 4 <nil>
	// guest true 3 <nil>
	// guest true 2 <nil>
	// owner true 1 <nil>
}

// A program that opens the file itself can have guests, too. An operator's
// command asks it with Dial.
func ExampleServe() {
	path, remove := temporary()
	defer remove()
	limits, _ := stint.NewLimits(names)
	l, err := stint.Open(path, limits, nil)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	server, err := hostlimit.Serve(l, path, nil)
	if err != nil {
		panic(err)
	}
	defer server.Close()

	guest, err := hostlimit.Dial(path, nil, nil)
	if err != nil {
		panic(err)
	}
	defer guest.Close()
	key := LoginsPerAddress.Key("10.0.0.1")
	fmt.Println(guest.Limits().Names()[1].Label, guest.OwnerPID() == os.Getpid())
	if _, err := guest.Hold(key, guest.Now().Add(time.Hour)); err != nil {
		panic(err)
	}
	fmt.Println(l.Allow(key))
	fmt.Println(guest.SetHold(key, time.Time{}))
	fmt.Println(l.Allow(key))
	// Output:
	// LoginsPerAddress true
	// false
	// <nil>
	// true
}

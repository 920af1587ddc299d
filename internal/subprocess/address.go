package subprocess

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var given sync.Map // addresses that FreeAddress has returned, or found in use

// FreeAddress returns a loopback address at which nothing listens, another one each
// time: two programs may be able to listen at the same one, and then share the
// connections. Its port is below the ports that the system gives to connections and
// to listeners that name none, so that none of these takes it before the program does.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(10_000+rand.IntN(22_000)))
		if _, was := given.LoadOrStore(address, true); was {
			continue
		}
		listener, err := net.Listen("tcp", address)
		if err == nil {
			require.NoError(t, listener.Close())
			return address
		}
	}
	require.Fail(t, "no port is free")
	return ""
}

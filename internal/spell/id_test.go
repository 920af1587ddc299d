package spell

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// IsIPv4 agrees with netip, and what LeadingIPv4 finds is an address that ends there.
func TestIPv4(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	found := 0
	for range 200_000 {
		text := make([]byte, rng.IntN(19))
		for i := range text {
			text[i] = "0123456789.25.:x"[rng.IntN(16)]
		}
		if id := string(text); rng.IntN(2) == 0 {
			text = append(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, rng.Uint32()))).AppendTo(nil), id...)
		}
		is := func(id string) bool {
			addr, err := netip.ParseAddr(id)
			return err == nil && addr.Is4() && addr.String() == id
		}
		id, n := string(text), LeadingIPv4(string(text))
		require.Equal(t, is(id), IsIPv4(id), "%q", id)
		if n > 0 {
			found++
			require.True(t, is(id[:n]), "%q: %d", id, n)
			require.False(t, n < len(id) && is(id[:n+1]), "%q: %d", id, n)
		}
	}
	require.Greater(t, found, 10_000)
}

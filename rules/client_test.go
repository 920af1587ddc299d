package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// However many buckets refuse, a Client remembers a bounded number.
func TestRefusals(t *testing.T) {
	c := new(Client)
	now := time.Now()
	for i := range 100_000 { // two sweeps find too many
		now = now.Add(time.Millisecond)
		c.backOff(ofA.Key(fmt.Sprint("first ", i)), now, now, time.Hour)
	}
	require.LessOrEqual(t, len(c.refusals), maxRefusals)
	now = now.Add(3 * time.Hour)
	for i := range maxRefusals + 1 {
		c.backOff(ofA.Key(fmt.Sprint(i%900)), now, now, time.Hour)
	}
	for i := range maxRefusals {
		c.backOff(ofA.Key(fmt.Sprint(i)), now, now, time.Hour)
	}
	require.LessOrEqual(t, len(c.refusals), maxRefusals)
}

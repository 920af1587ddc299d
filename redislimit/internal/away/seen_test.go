package away

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// steppingServer is a server whose time is that of this machine.
type steppingServer struct {
	Server
	now func() time.Time
}

func (s steppingServer) Time() time.Time { return s.now() }

// TestAhead: if the process is stopped between the readings of the two clocks, a
// TAT comes later, and the instant of a spend earlier.
func TestAhead(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	stop := func() time.Time { now = now.Add(3 * time.Second); return now }
	limits, err := stint.NewLimits(stint.Names{})
	require.NoError(t, err)
	local, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: stop})
	require.NoError(t, err)
	defer local.Close()
	n := &Node{Config: Config{Server: steppingServer{now: stop}}, Local: local}
	require.Equal(t, 3*time.Second, time.Duration(n.ahead()))
	spent := now
	require.Equal(t, spent.Add(-3*time.Second), n.spentAt(spent))
}

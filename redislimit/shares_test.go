package redislimit

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/sharestest"
	"github.com/stint-go/stint/internal/testlength"
)

// The laws of shares hold above a server.
func TestShareLaws(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	var opened atomic.Int64
	sharestest.Laws(t, testlength.Of(4000, 400), true,
		func(limits *stint.Limits, clock *modeltest.Clock) (stint.Decider, func(*stint.Limits) error) {
			l, err := Open(s.url, limits, &Options{Now: clock.Now, Durability: stint.Memory, RepeatDenials: -1,
				Timeout: 20 * time.Second, Prefix: fmt.Sprint(prefix, "shares", opened.Add(1))})
			require.NoError(t, err)
			return l, l.SetLimits
		})
}

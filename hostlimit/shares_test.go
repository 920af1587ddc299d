package hostlimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/sharestest"
	"github.com/stint-go/stint/internal/testlength"
)

// The laws of shares hold above a guest.
func TestShareLaws(t *testing.T) {
	t.Parallel()
	sharestest.Laws(t, testlength.Of(4000, 400), false,
		func(limits *stint.Limits, clock *modeltest.Clock) (stint.Decider, func(*stint.Limits) error) {
			path := filePath(t)
			opts := &Options{LimiterOptions: stint.Options{Now: clock.Now, FlushInterval: time.Hour, Durability: stint.Memory}}
			owner := openOn(t, path, limits, opts)
			guest := openOn(t, path, limits, opts)
			require.Equal(t, []Role{RoleOwner, RoleGuest}, []Role{owner.Role(), guest.Role()})
			return guest, guest.SetLimits
		})
}

package hostlimit_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/decidertest"
)

// TestDecider runs the conformance suite of Decider with the owner of a file,
// and with a guest.
func TestDecider(t *testing.T) {
	for _, role := range []hostlimit.Role{hostlimit.RoleOwner, hostlimit.RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			var lacks []decidertest.Feature
			if role == hostlimit.RoleGuest {
				lacks = []decidertest.Feature{decidertest.OwnClock, decidertest.Clamps}
			}
			decidertest.Run(t, &decidertest.Subject{
				Name: role.String(), InFile: true, Lacks: lacks, Unanswered: hostlimit.ErrNoAnswer,
				Open: func(t testing.TB, c decidertest.Config) (l decidertest.Limiter, err error) {
					opts := hostlimit.Options{LimiterOptions: stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000}}
					opts.TakeoverTimeout, opts.LimiterOptions.LockTimeout = time.Minute, time.Minute // the machine may be busy

					for range role { // the first is the owner
						opened, err := hostlimit.Open(filepath.Join(c.Folder, "q.db"), c.Limits, &opts)
						if err != nil {
							return nil, err
						}
						t.Cleanup(func() { opened.Close() })
						l = opened
					}
					require.Equal(t, role, l.(*hostlimit.Limiter).Role())
					return l, nil
				},
			})
		})
	}
}

package hostlimit_test

import (
	"os"
	"path/filepath"
	"sync"
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
			var folders sync.Map // of Limiters
			var lacks []decidertest.Feature
			if role == hostlimit.RoleGuest {
				lacks = []decidertest.Feature{decidertest.OwnClock, decidertest.Clamps}
			}
			decidertest.Run(t, &decidertest.Subject{
				Name:  role.String(),
				Lacks: lacks,
				Open: func(t testing.TB, c decidertest.Config) (stint.Decider, error) {
					folder, err := os.MkdirTemp("", "decider") // a short path, for the socket
					require.NoError(t, err)
					t.Cleanup(func() { os.RemoveAll(folder) })
					opts := hostlimit.Options{LimiterOptions: stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000}}
					opts.TakeoverTimeout, opts.LimiterOptions.LockTimeout = time.Minute, time.Minute // the machine may be busy
					var l *hostlimit.Limiter
					for range role { // the first is the owner
						opened, err := hostlimit.Open(filepath.Join(folder, "q.db"), c.Limits, &opts)
						if err != nil {
							return nil, err
						}
						t.Cleanup(func() { opened.Close() })
						l = opened
					}
					require.Equal(t, role, l.Role())
					folders.Store(stint.Decider(l), folder)
					return l, nil
				},
				Break: func(t testing.TB, d stint.Decider) {
					folder, _ := folders.Load(d)
					require.NoError(t, os.RemoveAll(folder.(string)))
				},
			})
		})
	}
}

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
			open := func(t testing.TB, folder string, c decidertest.Config) (*hostlimit.Limiter, error) {
				opts := hostlimit.Options{LimiterOptions: stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000}}
				opts.TakeoverTimeout, opts.LimiterOptions.LockTimeout = time.Minute, time.Minute // the machine may be busy
				l, err := hostlimit.Open(filepath.Join(folder, "q.db"), c.Limits, &opts)
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { l.Close() })
				folders.Store(stint.Decider(l), opened{folder, c})
				return l, nil
			}
			var lacks []decidertest.Feature
			if role == hostlimit.RoleGuest {
				lacks = []decidertest.Feature{decidertest.OwnClock, decidertest.Clamps}
			}
			decidertest.Run(t, &decidertest.Subject{
				Name:  role.String(),
				Lacks: lacks, Unanswered: hostlimit.ErrNoAnswer,
				Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
					folder, err := os.MkdirTemp("", "decider") // a short path, for the socket
					require.NoError(t, err)
					t.Cleanup(func() { os.RemoveAll(folder) })
					var l *hostlimit.Limiter
					for range role { // the first is the owner
						if l, err = open(t, folder, c); err != nil {
							return nil, err
						}
					}
					require.Equal(t, role, l.Role())
					return l, nil
				},
				Reopen: func(t testing.TB, closed decidertest.Limiter) (decidertest.Limiter, error) {
					was, _ := folders.Load(closed)
					return open(t, was.(opened).folder, was.(opened).config)
				},
				Break: func(t testing.TB, d stint.Decider) {
					was, _ := folders.Load(d)
					require.NoError(t, os.RemoveAll(was.(opened).folder))
				},
			})
		})
	}
}

// opened is how a Limiter was opened.
type opened struct {
	folder string
	config decidertest.Config
}

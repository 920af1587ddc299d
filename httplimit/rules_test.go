package httplimit_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/internal/rulestest"
	"github.com/stint-go/stint/internal/testlength"
)

// TestRules runs the rules with every kind of limit, on a Limiter, the owner of
// a file and a guest.
func TestRules(t *testing.T) {
	t.Parallel()
	t.Run("limiter", func(t *testing.T) {
		t.Parallel()
		rulestest.Run(t, rulestest.HTTP, &decidertest.Subject{Name: "limiter",
			Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
				opts := &stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000}
				if testlength.Long {
					return stint.Open(filepath.Join(t.TempDir(), "q.db"), c.Limits, opts)
				}
				return stint.New(stint.NewMemStore(), c.Limits, opts) // the owner has a file
			}})
	})
	t.Run("moved clock", func(t *testing.T) { rulestest.RunMovedClock(t, rulestest.HTTP) })
	for _, role := range []hostlimit.Role{hostlimit.RoleOwner, hostlimit.RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			rulestest.Run(t, rulestest.HTTP, &decidertest.Subject{Name: role.String(),
				Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
					folder, err := os.MkdirTemp("", "rules") // a short path, for the socket
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
					return l, nil
				}})
		})
	}
}

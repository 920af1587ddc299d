package rulestest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/internal/testlength"
)

// Limiter is a Limiter in memory, or of a file with -tags long.
func Limiter() *decidertest.Subject {
	open := func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
		opts := &stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000}
		if testlength.Long {
			return stint.Open(filepath.Join(t.TempDir(), "q.db"), c.Limits, opts)
		}
		return stint.New(stint.NewMemStore(), c.Limits, opts) // the owner has a file
	}
	return &decidertest.Subject{Name: "limiter", Open: open}
}

// Host is the owner of a file, or a guest.
func Host(role hostlimit.Role) *decidertest.Subject {
	open := func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
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
	}
	return &decidertest.Subject{Name: role.String(), Open: open}
}

package decidertest_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
)

// TestDecider runs the conformance suite of Decider with a *Limiter.
func TestDecider(t *testing.T) {
	t.Parallel()
	var folders sync.Map // of Limiters
	open := func(t testing.TB, folder string, c decidertest.Config) (decidertest.Limiter, error) {
		l, err := stint.Open(filepath.Join(folder, "quota.db"), c.Limits, &stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { l.Close() })
		folders.Store(stint.Decider(l), opened{folder, c})
		return l, nil
	}
	decidertest.Run(t, &decidertest.Subject{
		Name: "limiter",
		Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
			return open(t, t.TempDir(), c)
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
}

// opened is how a Limiter was opened.
type opened struct {
	folder string
	config decidertest.Config
}

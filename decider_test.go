package stint_test

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
	decidertest.Run(t, &decidertest.Subject{
		Name: "limiter",
		Open: func(t testing.TB, c decidertest.Config) (stint.Decider, error) {
			folder := t.TempDir()
			l, err := stint.Open(filepath.Join(folder, "quota.db"), c.Limits, &stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000})
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { l.Close() })
			folders.Store(stint.Decider(l), folder)
			return l, nil
		},
		Break: func(t testing.TB, d stint.Decider) {
			folder, _ := folders.Load(d)
			require.NoError(t, os.RemoveAll(folder.(string)))
		},
	})
}

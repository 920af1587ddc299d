package decidertest_test

import (
	"path/filepath"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
)

// TestDecider runs the conformance suite of Decider with a *Limiter.
func TestDecider(t *testing.T) {
	t.Parallel()
	decidertest.Run(t, &decidertest.Subject{
		Name: "limiter", InFile: true,
		Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
			l, err := stint.Open(filepath.Join(c.Folder, "quota.db"), c.Limits,
				&stint.Options{Durability: c.Level, Now: c.Now, MaxResident: 1000})
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { l.Close() })
			return l, nil
		},
	})
}

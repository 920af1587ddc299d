package redislimit

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/internal/rulestest"
)

// TestRules runs the rules of package httplimit with every kind of limit, with a
// server and without one.
func TestRules(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		s, prefix := commonServer(t)
		rulestest.Run(t, rulestest.HTTP, &decidertest.Subject{Name: "redis", Lacks: lacks,
			Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
				return opened(t, s.url, c, &Options{Prefix: fmt.Sprintf("%s-%d", prefix, commons.n.Add(1))})
			}})
	})
	t.Run("away", func(t *testing.T) {
		t.Parallel()
		nowhere := "unix://" + filepath.Join(t.TempDir(), "s")
		rulestest.Run(t, rulestest.HTTP, &decidertest.Subject{Name: "away", Lacks: append(lacks, decidertest.Holds),
			Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
				return openedAway(t, nowhere, c)
			}})
	})
}

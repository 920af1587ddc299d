package httplimit_test

import (
	"testing"

	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/rulestest"
)

// TestRules runs the rules with every kind of limit, on a Limiter, the owner of
// a file and a guest.
func TestRules(t *testing.T) {
	t.Parallel()
	t.Run("limiter", func(t *testing.T) {
		t.Parallel()
		rulestest.Run(t, rulestest.HTTP, rulestest.Limiter())
	})
	for _, role := range []hostlimit.Role{hostlimit.RoleOwner, hostlimit.RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			rulestest.Run(t, rulestest.HTTP, rulestest.Host(role))
		})
	}
}

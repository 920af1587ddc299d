// Package costs measures what a Limiter costs: memory, bytes and syncs on the
// disk, and time. docs/edge.md and docs/performance.md have the figures.
package costs

import (
	"os"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
)

// children are the programs that the tests run.
var children = subprocess.Children{}

func TestMain(m *testing.M) {
	children.Run()
	os.Exit(m.Run())
}

const flushed stint.Name = 1

package otellimit_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadme holds the program of the README to example/main.go, which is
// compiled with the module.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	program, err := os.ReadFile("example/main.go")
	require.NoError(t, err)
	_, code, found := strings.Cut(string(program), "package main\n")
	require.True(t, found)
	assert.Contains(t, string(readme), "```go\npackage main\n"+code+"```\n")
}

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	var terminal bytes.Buffer
	p := &progress{newBar(&terminal, "reading", 1000, true)}
	_, err := io.Copy(io.Discard, p.reader(strings.NewReader(strings.Repeat("x", 500))))
	require.NoError(t, err)
	p.add(100)
	assert.Equal(t, 0.6, p.bar.State().CurrentPercent)
	p.close()
	assert.Contains(t, terminal.String(), "reading")
	assert.NotContains(t, terminal.String(), "\x1b[3", "a color")
	assert.True(t, strings.HasSuffix(terminal.String(), "\r"), "what comes next begins a line: %q", terminal.String())
}

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
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

func TestNoProgressWhereNobodyLooks(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer file.Close()
	for _, stderr := range []io.Writer{file, new(bytes.Buffer)} {
		p := newProgress(stderr, "reading", 10, false)
		p.add(5)
		r := strings.NewReader("as it is")
		assert.Same(t, r, p.reader(r))
		p.close()
	}
	info, err := file.Stat()
	require.NoError(t, err)
	assert.Zero(t, info.Size())
}

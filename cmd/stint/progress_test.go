package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	var terminal bytes.Buffer
	p := newBar(&terminal, true, "reading", 1000, true)
	_, err := io.Copy(io.Discard, io.TeeReader(strings.NewReader(strings.Repeat("x", 500)), p))
	require.NoError(t, err)
	p.add(100)
	assert.Equal(t, 0.6, p.bar.State().CurrentPercent)
	p.close()
	assert.Contains(t, terminal.String(), "reading")
	assert.NotContains(t, terminal.String(), "\x1b[3", "a color")
	assert.True(t, strings.HasSuffix(terminal.String(), "\r"), "what comes next begins a line: %q", terminal.String())

	t.Run("a file that grows while it is read", func(t *testing.T) {
		for _, size := range []int64{0, 10} {
			n, err := io.Copy(io.Discard, io.TeeReader(strings.NewReader(strings.Repeat("x", 500)),
				newBar(io.Discard, true, "reading", size, true)))
			require.NoError(t, err)
			assert.EqualValues(t, 500, n)
		}
	})

	t.Run("nothing comes after it is closed", func(t *testing.T) {
		var terminal bytes.Buffer
		p := newBar(&terminal, true, "counting", -1, false)
		p.add(1)
		p.close()
		shown := terminal.String()
		time.Sleep(250 * time.Millisecond)
		assert.Equal(t, shown, terminal.String())
	})
}

package console

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var terminal bytes.Buffer
		var p *Progress
		shown := func(after time.Duration) string {
			time.Sleep(after)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			defer terminal.Reset()
			lines := strings.Split(terminal.String(), clearLine)
			return lines[len(lines)-1]
		}
		p = newLine(&terminal, true, "reading", 1<<20, true)
		assert.Empty(t, shown(50*time.Millisecond), "short work shows nothing")
		_, err := io.Copy(io.Discard, io.TeeReader(strings.NewReader(strings.Repeat("x", 1<<19)), p))
		require.NoError(t, err)
		assert.Equal(t, "reading  50%  512.0 KiB of 1.0 MiB  2s", shown(2*time.Second))
		assert.Equal(t, "reading  50%  512.0 KiB of 1.0 MiB  3s", shown(time.Second), "it moves by itself")
		p.Add(1 << 30) // a file that grows while it is read
		assert.Contains(t, shown(time.Second), "reading  100%  ")
		p.Next("saving", -1)
		assert.Equal(t, "saving  5s", shown(time.Second))
		p.Next("saving", 2_000_000)
		p.Add(500_000)
		assert.Equal(t, "saving  25%  500000 of 2000000  6s", shown(time.Second), "after bytes that were read")
		p.Close()
		assert.Equal(t, clearLine, terminal.String(), "what comes next begins a line")
		terminal.Reset()
		p.Add(1)
		p.Close()
		assert.Empty(t, shown(time.Second), "nothing comes after it is closed")

		p = newLine(&terminal, true, "counting", -1, false)
		p.Add(1234567)
		assert.Equal(t, "counting  1234567  1s", shown(time.Second))
		p.Close()

		terminal.Reset()
		p = newLine(&terminal, false, "counting", -1, false)
		p.Add(1)
		assert.Empty(t, shown(time.Second), "not a terminal")
		p.Close()
	})
}

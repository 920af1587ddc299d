package resp

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWriter(t *testing.T) {
	write := func(w *Writer) string {
		w.Map(1)
		w.Bulk("a\r\n")
		w.Null()
		w.Array(2)
		w.Int(-1)
		w.Simple("OK")
		w.Error("ERR two\r\nlines\n")
		return string(w.Buf)
	}
	const rest = "*2\r\n:-1\r\n+OK\r\n-ERR two lines \r\n"
	assert.Equal(t, "*2\r\n$3\r\na\r\n\r\n$-1\r\n"+rest, write(&Writer{}))
	assert.Equal(t, "%1\r\n$3\r\na\r\n\r\n_\r\n"+rest, write(&Writer{RESP3: true}))
}

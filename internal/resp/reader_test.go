package resp

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commands returns the commands of what a client sends, as %q of their
// arguments, and the error at the end. It checks the bounds.
func commands(t *testing.T, from io.Reader) (got []string, err error) {
	r := NewReader(from)
	for {
		command, err := r.Next()
		require.LessOrEqual(t, r.Size(), MaxBytes+24*2*MaxArgs)
		if err != nil {
			require.True(t, errors.As(err, new(ProtocolError)), err)
			return got, err
		}
		if command == nil {
			if err := r.Fill(); err != nil {
				return got, err
			}
			continue
		}
		require.LessOrEqual(t, len(command), MaxArgs)
		got = append(got, fmt.Sprintf("%q", command))
	}
}

func TestReader(t *testing.T) {
	long := strings.Repeat("x", 9000)
	many := strings.Repeat("$1\r\na\r\n", MaxArgs)
	for _, c := range []struct {
		name, sent string
		want       []string
		err        string // io.EOF if empty
	}{
		{"one", "*1\r\n$4\r\nPING\r\n", []string{`["PING"]`}, ""},
		{"two", "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n", []string{`["PING"]`, `["ECHO" "a\r\n"]`}, ""},
		{"empty argument", "*2\r\n$3\r\nDEL\r\n$0\r\n\r\n", []string{`["DEL" ""]`}, ""},
		{"empty commands", "*0\r\n*-1\r\n\r\n \n*1\r\n$1\r\na\r\n", []string{`["a"]`}, ""},
		{"long", "*2\r\n$1\r\na\r\n$9000\r\n" + long + "\r\n*1\r\n$1\r\nb\r\n", []string{`["a" "` + long + `"]`, `["b"]`}, ""},
		{"most arguments", "*64\r\n" + many, []string{`["` + strings.Repeat(`a" "`, 63) + `a"]`}, ""},
		{"typed", "PING\r\nCL.THROTTLE  user:1\t15 30 60\n", []string{`["PING"]`, `["CL.THROTTLE" "user:1" "15" "30" "60"]`}, ""},
		{"quoted", "ECHO \"a b\" 'c\"d' \"\"\r\n", []string{`["ECHO" "a b" "c\"d" ""]`}, ""},
		{"cut off", "*2\r\n$4\r\nECHO\r\n$3\r\nab", nil, ""},

		{"nested", "*1\r\n*1\r\n$1\r\na\r\n", nil, "expected '$', got '*'"},
		{"number as an argument", "*1\r\n:1\r\n", nil, "expected '$', got ':'"},
		{"no count", "*\r\n", nil, "invalid multibulk length"},
		{"words as a count", "*x\r\n", nil, "invalid multibulk length"},
		{"sign as a count", "*-\r\n", nil, "invalid multibulk length"},
		{"line feed alone", "*1\n$1\na\n", nil, "invalid multibulk length"},
		{"too many arguments", "*65\r\n", nil, "invalid multibulk length"},
		{"far too many", "*99999999999999999999\r\n", nil, "invalid multibulk length"},
		{"no length", "*1\r\n$\r\n", nil, "invalid bulk length"},
		{"negative length", "*1\r\n$-1\r\n", nil, "invalid bulk length"},
		{"too long", "*1\r\n$16385\r\n", nil, "invalid bulk length"},
		{"too long together", "*2\r\n$9000\r\n" + long + "\r\n$9000\r\n", nil, "too big command"},
		{"too short", "*1\r\n$1\r\nab\r\n", nil, "invalid bulk length"},
		{"zeros", "*" + strings.Repeat("0", 20000), nil, "too big command"},
		{"typed without an end", strings.Repeat("x", 20000), nil, "too big inline request"},
		{"too many words", strings.Repeat("x ", 65) + "\n", nil, "too big inline request"},
		{"open quote", "ECHO \"a\r\n", nil, "unbalanced quotes in request"},
		{"quote inside", "ECHO \"a\"b\r\n", nil, "unbalanced quotes in request"},
		{"after a good one", "PING\r\n*x\r\n", []string{`["PING"]`}, "invalid multibulk length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, from := range []io.Reader{strings.NewReader(c.sent), iotest.OneByteReader(strings.NewReader(c.sent)),
				iotest.DataErrReader(strings.NewReader(c.sent))} {
				got, err := commands(t, from)
				assert.Equal(t, c.want, got)
				if c.err == "" {
					assert.Equal(t, io.EOF, err)
				} else {
					assert.Equal(t, ProtocolError(c.err), err)
					assert.EqualError(t, err, "Protocol error: "+c.err)
				}
			}
		})
	}
}

// The last command stays valid while more is read behind it.
func TestReaderFillBehind(t *testing.T) {
	in, out := io.Pipe()
	r := NewReader(in)
	go func() {
		_, _ = io.WriteString(out, "*1\r\n$4\r\nWAIT\r\n")
		_, _ = io.WriteString(out, "PING\r\n")
		_ = out.Close()
	}()
	require.NoError(t, r.Fill())
	command, err := r.Next()
	require.NoError(t, err)
	require.NoError(t, r.FillBehind())
	assert.Equal(t, "WAIT", string(command[0]))
	require.Equal(t, io.EOF, r.FillBehind())
	command, err = r.Next()
	require.NoError(t, err)
	assert.Equal(t, "PING", string(command[0]))

	r = NewReader(strings.NewReader(strings.Repeat("x", 3*firstBuffer)))
	require.NoError(t, r.Fill())
	assert.Equal(t, io.ErrShortBuffer, r.FillBehind())
}

// FuzzReader: any bytes give commands within the bounds or a ProtocolError, the
// same in any portions. What an honest client sends comes back.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n", "PING \"a\" b\r\n", "*-1\r\n*0\r\n",
		"*1\r\n*1\r\n", "*65\r\n", "*1\r\n$16385\r\n", "$", "*1\r\n$3\r\nabc"} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, sent []byte, seed uint64) {
		whole, wholeErr := read(t, sent, nil)
		random := rand.New(rand.NewPCG(seed, 0))
		parts, partsErr := read(t, sent, random)
		require.Equal(t, whole, parts)
		require.Equal(t, wholeErr, partsErr)

		var honest Writer // the client's side: an array of strings
		var want []string
		for len(sent) > 0 && len(honest.Buf) < MaxBytes/2 {
			n := 1 + random.IntN(4)
			honest.Array(n)
			var command [][]byte
			for range n {
				size := min(len(sent), random.IntN(50))
				honest.Bulk(string(sent[:size]))
				command, sent = append(command, sent[:size]), sent[size:]
			}
			want = append(want, fmt.Sprintf("%q", command))
		}
		got, err := read(t, honest.Buf, random)
		require.Equal(t, io.EOF, err)
		require.Equal(t, want, got)
	})
}

// read is commands of sent in random portions.
func read(t *testing.T, sent []byte, random *rand.Rand) (got []string, err error) {
	return commands(t, readerFunc(func(b []byte) (int, error) {
		if len(sent) == 0 {
			return 0, io.EOF
		}
		if random != nil {
			b = b[:1+random.IntN(len(b))]
		}
		n := copy(b, sent)
		sent = sent[n:]
		return n, nil
	}))
}

type readerFunc func(b []byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

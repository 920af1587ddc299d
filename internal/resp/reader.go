package resp

import (
	"bytes"
	"io"
	"strconv"
	"unsafe"
)

// The bounds of a command. A command beyond them is a ProtocolError.
const (
	MaxArgs  = 64       // arguments, with the command's name
	MaxBytes = 16 << 10 // bytes of the command as it is sent
)

// firstBuffer is enough for a pipeline of short commands.
const firstBuffer = 4 << 10

// ProtocolError says how a client broke the protocol. Nothing more can be read
// from it.
type ProtocolError string

func (e ProtocolError) Error() string { return "Protocol error: " + string(e) }

// Reader reads commands. Use it so: read with Fill, take commands with Next until
// there is none, and begin again.
type Reader struct {
	from       io.Reader
	buf        []byte
	start, end int      // of the bytes that no command has taken
	args       [][]byte // of the last command
	err        error    // a ProtocolError
}

// NewReader returns a Reader of what from sends.
func NewReader(from io.Reader) *Reader {
	return &Reader{from: from, buf: make([]byte, firstBuffer)}
}

// Size returns the bytes that the Reader keeps.
func (r *Reader) Size() int { return len(r.buf) + cap(r.args)*int(unsafe.Sizeof([]byte{})) }

// Fill waits until the client has sent more, and reads it.
func (r *Reader) Fill() error {
	if r.start == r.end {
		r.start, r.end = 0, 0
	}
	if r.end == len(r.buf) {
		buf := r.buf
		if r.end-r.start > len(buf)/2 { // then Next has made sure that MaxBytes is more
			buf = make([]byte, min(2*len(buf), MaxBytes))
		}
		r.end = copy(buf, r.buf[r.start:r.end])
		r.buf, r.start = buf, 0
	}
	return r.read()
}

// FillBehind is Fill, but the last command stays valid. If there is no space, it
// returns io.ErrShortBuffer at once.
func (r *Reader) FillBehind() error {
	if r.end == len(r.buf) {
		return io.ErrShortBuffer
	}
	return r.read()
}

func (r *Reader) read() error {
	n, err := r.from.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil // an error comes again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// Next returns the next command that is complete: its name and its arguments,
// which are valid until the next Next or Fill. It returns nil if there is none.
func (r *Reader) Next() (command [][]byte, err error) {
	for r.err == nil && r.start < r.end {
		r.args = r.args[:0]
		var n int
		if b := r.buf[r.start:r.end]; b[0] == '*' {
			n, r.err = r.array(b)
		} else {
			n, r.err = r.inline(b)
		}
		if r.err == nil && n == 0 && r.end-r.start >= MaxBytes {
			r.err = ProtocolError("too big command")
		}
		if r.err != nil || n == 0 {
			break
		}
		if r.start += n; len(r.args) > 0 { // an empty command gets no reply
			return r.args, nil
		}
	}
	return nil, r.err
}

// array appends the arguments of an array of strings, and returns its length in
// bytes, or 0 if it is not complete.
func (r *Reader) array(b []byte) (length int, err error) {
	count, at, ok := number(b[1:])
	if !ok || count > MaxArgs {
		return 0, ProtocolError("invalid multibulk length")
	}
	if at == 0 {
		return 0, nil
	}
	at++
	for range max(0, count) {
		if at == len(b) {
			return 0, nil
		}
		if b[at] != '$' {
			return 0, ProtocolError("expected '$', got " + strconv.QuoteRune(rune(b[at])))
		}
		size, n, ok := number(b[at+1:])
		if !ok || size < 0 || size > MaxBytes {
			return 0, ProtocolError("invalid bulk length")
		}
		if n == 0 {
			return 0, nil
		}
		at += 1 + n
		if at+size+2 > MaxBytes {
			return 0, ProtocolError("too big command")
		}
		if at+size+2 > len(b) {
			return 0, nil
		}
		if b[at+size] != '\r' || b[at+size+1] != '\n' {
			return 0, ProtocolError("invalid bulk length")
		}
		r.args = append(r.args, b[at:at+size:at+size])
		at += size + 2
	}
	return at, nil
}

// number reads an integer and the end of its line. The length is 0 if the line
// is not complete.
func number(b []byte) (value, length int, ok bool) {
	i, negative := 0, len(b) > 0 && b[0] == '-'
	if negative {
		i++
	}
	digits := i
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		if value = 10*value + int(b[i]-'0'); value > 1<<20 {
			return 0, 0, false
		}
	}
	switch {
	case i < len(b) && (b[i] != '\r' || i == digits), i+1 < len(b) && b[i+1] != '\n':
		return 0, 0, false
	case i+1 >= len(b):
		return 0, 0, true
	}
	if negative {
		value = -value
	}
	return value, i + 2, true
}

// inline appends the words of a line, as a person types them, and returns its
// length in bytes, or 0 if it is not complete. A word may be in quotes.
func (r *Reader) inline(b []byte) (length int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) >= MaxBytes {
			return 0, ProtocolError("too big inline request")
		}
		return 0, nil
	}
	line, words := b[:end], 0
	for {
		if line = bytes.TrimLeft(line, " \t\r"); len(line) == 0 {
			return end + 1, nil
		}
		if words++; words > MaxArgs {
			return 0, ProtocolError("too big inline request")
		}
		var word []byte
		if quote := line[0]; quote == '"' || quote == '\'' {
			n := bytes.IndexByte(line[1:], quote)
			if n < 0 {
				return 0, ProtocolError("unbalanced quotes in request")
			}
			word, line = line[1:1+n], line[n+2:]
			if len(line) > 0 && !bytes.ContainsRune([]byte(" \t\r"), rune(line[0])) {
				return 0, ProtocolError("unbalanced quotes in request")
			}
		} else {
			n := bytes.IndexAny(line, " \t\r")
			if n < 0 {
				n = len(line)
			}
			word, line = line[:n], line[n:]
		}
		r.args = append(r.args, word)
	}
}

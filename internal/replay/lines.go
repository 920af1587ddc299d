package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
)

// maxLine is the length in bytes of the longest line, without its end. Servers
// cut a request at a few KiB.
const maxLine = 1 << 20

// byteOrderMark begins a file that some editors and Windows programs write.
// After "cat a.log b.log" it is in the middle.
var byteOrderMark = []byte("\ufeff")

// errCutOff is the error of a gzipped log that ends too early.
var errCutOff = errors.New("the compressed log ends too early: it may be cut off")

// errUnended is the warning about a last line that has no line feed.
var errUnended = errors.New("the last line has no line feed: it may be cut off")

// eachLine calls f with the number of each line, the line without its end, and
// what can be read of the lines after it without waiting. The line is valid until f
// returns. If a line is too long, f gets errLineTooLong. A last line without an end
// comes with errUnended. eachLine unpacks gzip, which it recognizes by its first
// bytes. If the log cannot be read to its end, f has had the lines before.
func eachLine(ctx context.Context, r io.Reader, f func(number int, line []byte, ahead func() []byte, err error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := ReadAhead(ctx, r)
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		plain, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in = ReadAhead(ctx, plain)
	}
	ahead := func() []byte {
		text, _ := in.Peek(in.Buffered())
		return text
	}
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		var wrong error
		for err == bufio.ErrBufferFull {
			wrong = errLineTooLong
			_, err = in.ReadSlice('\n')
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errCutOff
		}
		if err != nil && err != io.EOF {
			return err
		}
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		if wrong != nil {
			line = nil
		} else if err == io.EOF {
			wrong = errUnended
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		line = bytes.TrimPrefix(line, byteOrderMark)
		if failed := f(number, line, ahead, wrong); failed != nil {
			return failed
		}
		if err == io.EOF {
			return nil
		}
	}
}

// ReadAhead reads r in a goroutine, until ctx ends. So a signal need not wait for
// a pipe without input. Unpacking also runs at the same time as the decisions:
// the Reader has space for several parts, so the next one is read while this one
// is used. Its ReadSlice returns the longest line with its end.
func ReadAhead(ctx context.Context, r io.Reader) *bufio.Reader {
	const part = 1 << 17
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.CopyBuffer(in, struct{ io.Reader }{r}, make([]byte, part)) // a WriteTo has parts of its own
		_ = in.CloseWithError(err)
	}()
	return bufio.NewReaderSize(out, maxLine+1)
}

package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
)

// maxLine is the length in bytes of the longest line. Servers cut a request at
// a few KiB.
const maxLine = 1 << 20

// byteOrderMark begins a file that some editors and Windows programs write.
// After "cat a.log b.log" it is in the middle.
var byteOrderMark = []byte("\ufeff")

// errCutOff is the error of a gzipped log that ends too early.
var errCutOff = errors.New("the compressed log ends too early: it may be cut off")

// errUnended is the warning about a last line that has no line feed.
var errUnended = errors.New("the last line has no line feed: it may be cut off")

// eachLine calls f with the number of each line, and the line without its end.
// The line is valid until f returns. If a line is too long, f gets
// errLineTooLong. A last line without an end comes with errUnended. eachLine
// unpacks gzip, which it recognizes by its first bytes. If the log cannot be read
// to its end, f has had the lines before.
func eachLine(ctx context.Context, r io.Reader, f func(number int, line []byte, err error) error) error {
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
	var long []byte
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			line, long, err = readLong(in, append(long[:0], line...))
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
		var wrong error
		if err == io.EOF {
			wrong = errUnended
		}
		if len(line) > maxLine {
			line, wrong = nil, errLineTooLong
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		line = bytes.TrimPrefix(line, byteOrderMark)
		if failed := f(number, line, wrong); failed != nil {
			return failed
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readLong reads the rest of a line that begins with long. It keeps only the
// beginning of a line that is too long.
func readLong(in *bufio.Reader, long []byte) (line, buffer []byte, err error) {
	err = bufio.ErrBufferFull
	for err == bufio.ErrBufferFull {
		var part []byte
		part, err = in.ReadSlice('\n')
		if len(long) <= maxLine {
			long = append(long, part...)
		}
	}
	return long, long, err
}

// ReadAhead reads r in a goroutine, a few buffers ahead, until ctx ends. So a
// signal need not wait for a pipe without input. Unpacking also runs at the
// same time as the decisions.
func ReadAhead(ctx context.Context, r io.Reader) *bufio.Reader {
	a := &ahead{ctx: ctx, full: make(chan part, aheadBuffers), empty: make(chan []byte, aheadBuffers)}
	for range aheadBuffers {
		a.empty <- make([]byte, 1<<17)
	}
	go func() {
		for {
			select {
			case buffer := <-a.empty:
				n, err := r.Read(buffer)
				a.full <- part{buffer, buffer[:n], err} // full has space for all buffers
				if err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return bufio.NewReaderSize(a, 1<<16)
}

const aheadBuffers = 4

type part struct {
	buffer, rest []byte
	err          error // after the rest
}

type ahead struct {
	ctx   context.Context
	full  chan part
	empty chan []byte
	part
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.buffer != nil {
			a.empty <- a.buffer
			a.buffer = nil
		}
		select {
		case a.part = <-a.full:
		case <-a.ctx.Done():
			return 0, a.ctx.Err()
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"time"
)

// maxLine is the longest line read whole. Servers cut a request at a few KiB: what is longer is not a log line.
const maxLine = 1 << 20

var (
	errLineTooLong = errors.New("longer than 1 MiB")
	errNoFields    = errors.New("does not begin with HOST IDENT USER [TIME]")
	errLogTime     = errors.New("has no time as in [17/May/2015:10:05:03 +0000], from 1970 to 2161")
	errNoRequest   = errors.New(`has no "REQUEST" STATUS BYTES after the time`)
)

// logLine is what a line of an access log says. Its bytes are those of the line.
type logLine struct {
	host, user, request []byte
	unix                int64 // seconds
}

// method returns the first word of the request.
func (l logLine) method() []byte {
	method, _, _ := bytes.Cut(l.request, []byte(" "))
	return method
}

// path returns the second word of the request, up to a question mark.
func (l logLine) path() []byte {
	_, rest, _ := bytes.Cut(l.request, []byte(" "))
	target, _, _ := bytes.Cut(rest, []byte(" "))
	path, _, _ := bytes.Cut(target, []byte("?"))
	return path
}

// parseLogLine reads a line of Common Log Format,
//
//	HOST IDENT USER [17/May/2015:10:05:03 +0000] "REQUEST" STATUS BYTES
//
// which may go on after a space, as Combined Log Format does.
func parseLogLine(line []byte) (logLine, error) {
	host, rest, ok1 := bytes.Cut(line, []byte(" "))
	ident, rest, ok2 := bytes.Cut(rest, []byte(" "))
	user, rest, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !ok3 || len(host) == 0 || len(ident) == 0 || len(user) == 0 || len(rest) == 0 || rest[0] != '[' {
		return logLine{}, errNoFields
	}
	rest = rest[1:]
	if len(rest) <= len(logTimeLayout) || rest[len(logTimeLayout)] != ']' {
		return logLine{}, errLogTime
	}
	unix, ok := parseLogTime(rest[:len(logTimeLayout)])
	if !ok {
		return logLine{}, errLogTime
	}
	request, ok := requestOf(rest[len(logTimeLayout)+1:])
	if !ok {
		return logLine{}, errNoRequest
	}
	return logLine{host, user, request, unix}, nil
}

// requestOf returns the request of ` "REQUEST" STATUS BYTES`, which nothing may follow, or a space and anything.
func requestOf(b []byte) (request []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(` "`))
	if !ok {
		return nil, false
	}
	end := 0
	for ; ; end++ {
		if end >= len(b) {
			return nil, false
		}
		if b[end] == '"' {
			break
		}
		if b[end] == '\\' {
			end++
		}
	}
	request, b = b[:end], b[end+1:]
	if len(b) < 6 || b[0] != ' ' || b[4] != ' ' {
		return nil, false
	}
	if _, ok := digits(b[1:4]); !ok {
		return nil, false
	}
	size, _, _ := bytes.Cut(b[5:], []byte(" "))
	if len(size) == 1 && size[0] == '-' {
		return request, true
	}
	for _, c := range size {
		if c < '0' || c > '9' {
			return nil, false
		}
	}
	return request, len(size) > 0
}

const logTimeLayout = "02/Jan/2006:15:04:05 -0700"

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// parseLogTime is time.Parse of logTimeLayout, in an eighth of the time, for the years that a limiter counts in.
func parseLogTime(b []byte) (unix int64, ok bool) {
	if len(b) != len(logTimeLayout) || b[2] != '/' || b[6] != '/' || b[11] != ':' || b[14] != ':' || b[17] != ':' || b[20] != ' ' {
		return 0, false
	}
	month := 1
	for ; months[3*month-3:3*month] != string(b[3:6]); month++ {
		if month == 12 {
			return 0, false
		}
	}
	day, ok1 := digits(b[0:2])
	year, ok2 := digits(b[7:11])
	hour, ok3 := digits(b[12:14])
	minute, ok4 := digits(b[15:17])
	second, ok5 := digits(b[18:20])
	zoneHour, ok6 := digits(b[22:24])
	zoneMinute, ok7 := digits(b[24:26])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 {
		return 0, false
	}
	if year < 1970 || year > 2161 || hour > 23 || minute > 59 || second > 59 || zoneHour > 23 || zoneMinute > 59 {
		return 0, false
	}
	date := time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC)
	if date.Day() != day {
		return 0, false // the 31st of a month of 30
	}
	east := int64(zoneHour*3600 + zoneMinute*60)
	switch b[21] {
	case '+':
		return date.Unix() - east, true
	case '-':
		return date.Unix() + east, true
	}
	return 0, false
}

func digits(b []byte) (n int, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// eachLine calls f with the number of every line of r and the line without its end, which is good until f returns. Of a
// line that is too long, f gets errLineTooLong in its place. What is gzip, by its first bytes, is read as such.
func eachLine(ctx context.Context, r io.Reader, f func(number int, line []byte, err error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := readAhead(ctx, r)
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		plain, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in = readAhead(ctx, plain)
	}
	var long []byte
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			line, long, err = readLong(in, append(long[:0], line...))
		}
		if err != nil && err != io.EOF {
			return err
		}
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		var tooLong error
		if len(line) > maxLine {
			line, tooLong = nil, errLineTooLong
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if failed := f(number, line, tooLong); failed != nil {
			return failed
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readLong reads the rest of a line that begins with long; of one that is too long it keeps no more than shows that.
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

// readAhead reads r in a goroutine of its own, which is a few buffers ahead, until ctx ends. A terminal or a pipe on which
// nothing comes then keeps no signal waiting, and what is gzipped is read on one core and used on another.
func readAhead(ctx context.Context, r io.Reader) *bufio.Reader {
	a := &ahead{ctx: ctx, full: make(chan part, aheadBuffers), empty: make(chan []byte, aheadBuffers)}
	for range aheadBuffers {
		a.empty <- make([]byte, 1<<17)
	}
	go func() {
		for {
			select {
			case buffer := <-a.empty:
				n, err := r.Read(buffer)
				a.full <- part{buffer, buffer[:n], err} // has room for all the buffers
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

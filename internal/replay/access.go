package replay

import (
	"bytes"
	"errors"
)

// access reads Common Log Format:
//
//	HOST IDENT USER [17/May/2015:10:05:03 +0000] "REQUEST" STATUS BYTES
//
// More may follow after a space, as in Combined Log Format. The fields are part
// of the line.
type access struct{ host, user, request []byte }

func (a *access) parse(line []byte) (p parsed, err error) {
	host, rest, ok1 := bytes.Cut(line, []byte(" "))
	ident, rest, ok2 := bytes.Cut(rest, []byte(" "))
	user, rest, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !ok3 || len(host) == 0 || len(ident) == 0 || len(user) == 0 || !bytes.HasPrefix(rest, []byte("[")) {
		return p, errNoFields
	}
	rest = rest[1:]
	if len(rest) <= len(logTimeLayout) || rest[len(logTimeLayout)] != ']' {
		return p, errLogTime
	}
	unix, ok := parseLogTime(rest[:len(logTimeLayout)])
	if !ok {
		return p, errLogTime
	}
	request, ok := requestOf(rest[len(logTimeLayout)+1:])
	if !ok {
		return p, errNoRequest
	}
	*a = access{host, user, request}
	return parsed{at: unix * 1e9, timed: true, message: line}, nil
}

func (a *access) field(name string) []byte {
	switch name {
	case "ip":
		return a.host
	case "user":
		return a.user
	}
	method, rest, _ := bytes.Cut(a.request, []byte(" "))
	if name == "method" {
		return method
	}
	target, _, _ := bytes.Cut(rest, []byte(" "))
	path, _, _ := bytes.Cut(target, []byte("?"))
	return path
}

func (*access) fields() []string { return []string{"ip", "method", "path", "user"} }

// requestOf returns the request of ` "REQUEST" STATUS BYTES`. After a space,
// anything may follow.
func requestOf(b []byte) (request []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(` "`))
	end := 0
	for end < len(b) && b[end] != '"' {
		if b[end] == '\\' {
			end++
		}
		end++
	}
	if !ok || end >= len(b) {
		return nil, false
	}
	before, after, _ := bytes.Cut(b[end+1:], []byte(" "))
	status, after, _ := bytes.Cut(after, []byte(" "))
	size, _, _ := bytes.Cut(after, []byte(" "))
	_, isNumber := digits(size)
	_, ok = digits(status)
	return b[:end], ok && len(before) == 0 && len(status) == 3 && (isNumber || string(size) == "-")
}

var (
	errLineTooLong = errors.New("longer than 1 MiB")
	errNoFields    = errors.New("does not begin with HOST IDENT USER [TIME]")
	errLogTime     = errors.New("has no time as in [17/May/2015:10:05:03 +0000], from 1970 to 2161")
	errNoRequest   = errors.New(`has no "REQUEST" STATUS BYTES after the time`)
)

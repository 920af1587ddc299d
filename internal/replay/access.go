package replay

import (
	"bytes"
	"errors"
)

// access reads Common Log Format:
//
//	HOST IDENT USER [17/May/2015:10:05:03 +0000] "REQUEST" STATUS BYTES
//
// More may follow after a space, as in Combined Log Format, and Apache's
// vhost_combined has the server before it. HOST may be a list.
func access(r *record, line []byte) error {
	end := bytes.Index(line, []byte("] "))
	begin := bytes.LastIndex(line[:max(0, end)], []byte(" ["))
	host, rest := hostOf(line[:max(0, begin)])
	ident, user := hostOf(rest)
	if next, more := hostOf(user); len(more) > 0 && string(next) == "-" { // IDENT is always -
		host, user = ident, more
	}
	if len(host) == 0 || len(ident) == 0 || len(user) == 0 {
		return errNoFields
	}
	request, status, ok := requestOf(line[end+1:])
	if !ok {
		return errNoRequest
	}
	method, target, _ := bytes.Cut(request, []byte(" "))
	target, _, _ = bytes.Cut(target, []byte(" "))
	path, _, _ := bytes.Cut(target, []byte("?"))
	r.values, r.message = append(r.values[:0], host, method, path, user, status, line[begin+2:end]), line
	return nil
}

var accessFields = []string{"ip", "method", "path", "user", "status", "time"}

// hostOf returns the first word of a line, or the list of words that ends with the
// first one without a comma, and the text after it.
func hostOf(text []byte) (host, rest []byte) {
	for i, c := range text {
		if c == ' ' && (i == 0 || text[i-1] != ',') {
			return text[:i], text[i+1:]
		}
	}
	return text, nil
}

// requestOf returns the request and the status of ` "REQUEST" STATUS BYTES`.
// After a space, anything may follow.
func requestOf(b []byte) (request, status []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(` "`))
	end := 0
	for end < len(b) && b[end] != '"' {
		if b[end] == '\\' {
			end++
		}
		end++
	}
	if !ok || end >= len(b) {
		return nil, nil, false
	}
	before, after, _ := bytes.Cut(b[end+1:], []byte(" "))
	status, after, _ = bytes.Cut(after, []byte(" "))
	size, _, _ := bytes.Cut(after, []byte(" "))
	return b[:end], status, len(before) == 0 && len(status) == 3 && isNumber(status) && (isNumber(size) || string(size) == "-")
}

var (
	errLineTooLong = errors.New("longer than 1 MiB")
	errNoFields    = errors.New("does not begin with HOST IDENT USER [TIME]")
	errNoRequest   = errors.New(`has no "REQUEST" STATUS BYTES after the time`)
)

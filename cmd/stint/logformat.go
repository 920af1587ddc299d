package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// reading returns the id that a line is about, and the time of its request in
// Unix nanoseconds. The id is valid until the next call.
type reading func(line []byte) (id []byte, at int64, err error)

var (
	errNoID      = errors.New("names nobody") // not a request, or one without an id
	errNotJSON   = errors.New("is not a JSON object")
	errFieldTime = errors.New("has a time that is none: see --time and --time-format")
)

// lineFlags say how to read the lines of a log.
type lineFlags struct {
	format     string // "access", "json", or a regular expression
	by         string
	time       string
	timeFormat string
	year       int
}

const aPattern = "(?P<"

// defaultTime is the field that has the time.
const defaultTime = "time"

// reading returns the function that the flags describe.
func (f *lineFlags) reading() (reading, error) {
	var pattern *regexp.Regexp // of --by
	if p, ok := strings.CutPrefix(f.by, "/"); ok {
		if p, ok = strings.CutSuffix(p, "/"); !ok {
			return nil, fmt.Errorf("--by %q: a regular expression ends in / too", f.by)
		}
		var err error
		if pattern, err = regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("--by %q: %w", f.by, err)
		}
	}
	t := &logTime{layout: f.timeFormat, year: f.year}
	switch {
	case f.year != 0 && (f.year < 1970 || f.year > 2161):
		return nil, fmt.Errorf("--year %d: must be from 1970 to 2161", f.year)
	case f.format == "access" && (cmp.Or(f.time, defaultTime) != defaultTime || f.timeFormat != "" || f.year != 0):
		return nil, errors.New("--time, --time-format and --year go with --lines json or REGEXP: " +
			"an access log has its times in one way")
	case f.format == "access":
		return f.access(pattern)
	case f.format == "json":
		return f.json(pattern, t), nil
	case strings.Contains(f.format, aPattern) || strings.Contains(f.format, "(?<"):
		return f.pattern(pattern, t)
	}
	return nil, fmt.Errorf("--lines %q: must be access, json, or a regular expression with named groups, "+
		"as in %stime>[0-9]+)", f.format, aPattern)
}

// keysOfAccess are the fields of an access log.
var keysOfAccess = map[string]func(l logLine) []byte{
	"ip":     func(l logLine) []byte { return l.host },
	"user":   func(l logLine) []byte { return l.user },
	"method": logLine.method,
	"path":   logLine.path,
}

func (f *lineFlags) access(pattern *regexp.Regexp) (reading, error) {
	key := keysOfAccess[f.by]
	if key == nil && pattern == nil {
		return nil, fmt.Errorf("--by %q: must be ip, method, path, user, "+
			"or a regular expression such as '/key=([0-9]+)/'", f.by)
	}
	return func(text []byte) ([]byte, int64, error) {
		line, err := parseLogLine(text)
		if err != nil {
			return nil, 0, err
		}
		var id []byte
		if pattern != nil {
			id = matched(pattern, text)
		} else {
			id = key(line)
		}
		if len(id) == 0 || len(id) == 1 && id[0] == '-' {
			return nil, 0, errNoID
		}
		return id, line.unix * 1e9, nil
	}, nil
}

// matched returns the first group of the match, or all of it if there are no
// groups.
func matched(pattern *regexp.Regexp, text []byte) []byte {
	m := pattern.FindSubmatchIndex(text)
	if m == nil {
		return nil
	}
	if len(m) > 2 {
		m = m[2:]
	}
	if m[0] < 0 {
		return nil
	}
	return text[m[0]:m[1]]
}

func (f *lineFlags) json(pattern *regexp.Regexp, t *logTime) reading {
	return func(text []byte) ([]byte, int64, error) {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil || object == nil {
			return nil, 0, errNotJSON
		}
		var id []byte
		if pattern != nil {
			id = matched(pattern, text)
		} else {
			id = fieldOf(object, f.by)
		}
		if len(id) == 0 {
			return nil, 0, errNoID
		}
		at, ok := t.parse(fieldOf(object, f.time))
		if !ok {
			return nil, 0, errFieldTime
		}
		return id, at, nil
	}
}

// fieldOf returns a field of an object, or "request.remote_ip" of an object in
// it, as text. It returns nil unless the field is text or a number.
func fieldOf(object map[string]json.RawMessage, name string) []byte {
	raw, ok := object[name]
	if !ok {
		outer, inner, found := strings.Cut(name, ".")
		var in map[string]json.RawMessage
		if found && json.Unmarshal(object[outer], &in) == nil {
			return fieldOf(in, inner)
		}
		return nil
	}
	var s string
	var n json.Number
	switch {
	case string(raw) == "null":
		return nil
	case json.Unmarshal(raw, &s) == nil:
		if !utf8.Valid(raw) { // Unmarshal would make two such ids one
			return raw[1 : len(raw)-1]
		}
		return []byte(s)
	case json.Unmarshal(raw, &n) == nil:
		return raw
	}
	return nil
}

func (f *lineFlags) pattern(pattern *regexp.Regexp, t *logTime) (reading, error) {
	line, err := regexp.Compile(f.format)
	if err != nil {
		return nil, fmt.Errorf("--lines %q: %w", f.format, err)
	}
	groups := slices.DeleteFunc(slices.Clone(line.SubexpNames()), func(name string) bool { return name == "" })
	at, id := line.SubexpIndex(f.time), line.SubexpIndex(f.by)
	if at < 0 {
		return nil, fmt.Errorf("--lines has no group %q for the time: it has %s; name another with --time",
			f.time, strings.Join(groups, ", "))
	}
	if id < 0 && pattern == nil {
		return nil, fmt.Errorf("--by %q: --lines has the groups %s", f.by, strings.Join(groups, ", "))
	}
	return func(text []byte) ([]byte, int64, error) {
		m := line.FindSubmatchIndex(text)
		if m == nil {
			return nil, 0, errNoID
		}
		group := func(i int) []byte {
			if m[2*i] < 0 {
				return nil
			}
			return text[m[2*i]:m[2*i+1]]
		}
		var who []byte
		if pattern != nil {
			who = matched(pattern, text)
		} else {
			who = group(id)
		}
		if len(who) == 0 {
			return nil, 0, errNoID
		}
		when, ok := t.parse(group(at))
		if !ok {
			return nil, 0, errFieldTime
		}
		return who, when, nil
	}, nil
}

// canonical returns an address in its one spelling, and other text unchanged.
func canonical(text string) string {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Unmap().WithZone("").String()
	}
	return text
}

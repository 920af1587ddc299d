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

// reading parses a line. The id in the entry is valid until the next call.
type reading func(line []byte) (entry, error)

// entry is one request of a log, or several at one instant.
type entry struct {
	id    []byte
	at    int64 // Unix nanoseconds
	times int64 // requests
	cost  int64 // tokens of each

	repeated bool // the line stands for repeated messages
}

var (
	errNoID      = errors.New("names no id") // not a request, or one without an id
	errNotJSON   = errors.New("is not a JSON object")
	errFieldTime = errors.New("has a time that cannot be read: see --time and --time-format")
)

// lineFlags say how to read the lines of a log.
type lineFlags struct {
	format     string // "access", "json", "syslog", or a regular expression
	by         string
	time       string
	timeFormat string
	year       int
	cost       string
	ipv6Bits   int
}

const aPattern = "(?P<"

// defaultTime is the field that has the time.
const defaultTime = "time"

// defaultCost is the group that has the cost, if there is one.
const defaultCost = "cost"

// compiled returns the regular expression of a flag's value, /REGEXP/, or nil
// if the value is the name of a field.
func compiled(flag, value string) (*regexp.Regexp, error) {
	p, ok := strings.CutPrefix(value, "/")
	if !ok {
		return nil, nil
	}
	if p, ok = strings.CutSuffix(p, "/"); !ok {
		return nil, fmt.Errorf("--%s %q: a regular expression ends in /, too: want /REGEXP/", flag, value)
	}
	pattern, err := regexp.Compile(p)
	if err != nil {
		return nil, fmt.Errorf("--%s %q: %w", flag, value, err)
	}
	return pattern, nil
}

// reading returns the function that the flags describe. It reads times with t.
func (f *lineFlags) reading(t *logTime) (reading, error) {
	by, err := compiled("by", f.by)
	if err != nil {
		return nil, err
	}
	cost, err := compiled("cost", f.cost)
	if err != nil {
		return nil, err
	}
	t.layout, t.year = f.timeFormat, f.year
	fixedTime := f.format == "access" || f.format == "syslog"
	switch {
	case f.year != 0 && (f.year < 1970 || f.year > 2161):
		return nil, fmt.Errorf("--year %d: must be from 1970 to 2161", f.year)
	case fixedTime && (cmp.Or(f.time, defaultTime) != defaultTime || f.timeFormat != ""):
		return nil, fmt.Errorf("--time and --time-format go with --lines json or REGEXP: "+
			"--lines %s has its times in a fixed place", f.format)
	case f.format == "access" && f.year != 0:
		return nil, errors.New("--year goes with --lines syslog, json or REGEXP: an access log has years")
	case f.format == "access":
		return f.access(by, cost)
	case f.format == "json":
		return f.json(by, cost, t), nil
	case f.format == "syslog":
		return f.syslog(by, cost, t)
	case strings.Contains(f.format, aPattern) || strings.Contains(f.format, "(?<"):
		return f.pattern(by, cost, t)
	}
	return nil, fmt.Errorf("--lines %q: must be access, json, syslog, or a regular expression with named groups, "+
		"as in %stime>[0-9]+)", f.format, aPattern)
}

// costOf reads the cost of a line.
func costOf(text []byte) (int64, error) {
	if text == nil {
		return 0, errNoCost
	}
	n, ok := wholeNumber(text)
	if !ok {
		return 0, fmt.Errorf("has the cost %q: want a whole number from 1", shortened(string(text), 20))
	}
	return n, nil
}

var errNoCost = errors.New("has no cost: see --cost")

// wholeNumber reads a number from 1 to 10¹⁸−1.
func wholeNumber(text []byte) (n int64, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, n > 0 && len(text) <= 18
}

// keysOfAccess are the fields of an access log.
var keysOfAccess = map[string]func(l logLine) []byte{
	"ip":     func(l logLine) []byte { return l.host },
	"user":   func(l logLine) []byte { return l.user },
	"method": logLine.method,
	"path":   logLine.path,
}

func (f *lineFlags) access(by, cost *regexp.Regexp) (reading, error) {
	key := keysOfAccess[f.by]
	switch {
	case key == nil && by == nil:
		return nil, fmt.Errorf("--by %q: must be ip, method, path, user, "+
			"or a regular expression such as '/key=([0-9]+)/'", f.by)
	case f.cost != "" && cost == nil:
		return nil, fmt.Errorf("--cost %q: with --lines access it must be a regular expression such as "+
			"'/n=([0-9]+)/'", f.cost)
	}
	return func(text []byte) (e entry, err error) {
		line, err := parseLogLine(text)
		if err != nil {
			return e, err
		}
		if by != nil {
			e.id = matched(by, text)
		} else {
			e.id = key(line)
		}
		if len(e.id) == 0 || len(e.id) == 1 && e.id[0] == '-' {
			return e, errNoID
		}
		e.at, e.times, e.cost = line.unix*1e9, 1, 1
		if cost != nil {
			e.cost, err = costOf(matched(cost, text))
		}
		return e, err
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

func (f *lineFlags) json(by, cost *regexp.Regexp, t *logTime) reading {
	return func(text []byte) (e entry, err error) {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil || object == nil {
			return e, errNotJSON
		}
		if by != nil {
			e.id = matched(by, text)
		} else {
			e.id = fieldOf(object, f.by)
		}
		if len(e.id) == 0 {
			return e, errNoID
		}
		e.times, e.cost = 1, 1
		switch {
		case cost != nil:
			e.cost, err = costOf(matched(cost, text))
		case f.cost != "":
			e.cost, err = costOf(fieldOf(object, f.cost))
		}
		if err == nil {
			e.at, err = t.parse(fieldOf(object, f.time))
		}
		return e, err
	}
}

// fieldOf returns a field of an object as text. "request.remote_ip" is a field
// of an object inside it. It returns nil unless the field is text or a number.
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
		if !utf8.Valid(raw) { // Unmarshal would replace bytes, and two ids could become one
			return raw[1 : len(raw)-1]
		}
		return []byte(s)
	case json.Unmarshal(raw, &n) == nil:
		return raw
	}
	return nil
}

func (f *lineFlags) pattern(by, cost *regexp.Regexp, t *logTime) (reading, error) {
	line, err := regexp.Compile(f.format)
	if err != nil {
		return nil, fmt.Errorf("--lines %q: %w", f.format, err)
	}
	groups := slices.DeleteFunc(slices.Clone(line.SubexpNames()), func(name string) bool { return name == "" })
	at, id, tokens := line.SubexpIndex(f.time), line.SubexpIndex(f.by), line.SubexpIndex(cmp.Or(f.cost, defaultCost))
	switch {
	case at < 0:
		return nil, fmt.Errorf("--lines has no group %q for the time: it has %s; name another with --time",
			f.time, strings.Join(groups, ", "))
	case id < 0 && by == nil:
		return nil, fmt.Errorf("--by %q: --lines has no such group: it has %s", f.by, strings.Join(groups, ", "))
	case f.cost != "" && tokens < 0 && cost == nil:
		return nil, fmt.Errorf("--cost %q: --lines has no such group: it has %s", f.cost, strings.Join(groups, ", "))
	}
	return func(text []byte) (e entry, err error) {
		m := line.FindSubmatchIndex(text)
		if m == nil {
			return e, errNoID
		}
		group := func(i int) []byte {
			if m[2*i] < 0 {
				return nil
			}
			return text[m[2*i]:m[2*i+1]]
		}
		if by != nil {
			e.id = matched(by, text)
		} else {
			e.id = group(id)
		}
		if len(e.id) == 0 {
			return e, errNoID
		}
		e.times, e.cost = 1, 1
		switch {
		case cost != nil:
			e.cost, err = costOf(matched(cost, text))
		case tokens >= 0 && m[2*tokens] >= 0: // the group may be optional
			e.cost, err = costOf(group(tokens))
		}
		if err == nil {
			e.at, err = t.parse(group(at))
		}
		return e, err
	}, nil
}

// canonical returns an IPv4 address in its one spelling, the network of an IPv6
// address as in httplimit.ByIP, and other text unchanged. It may use buffer.
func canonical(buffer, text []byte, ipv6Bits int) []byte {
	addr, err := netip.ParseAddr(string(text))
	if err != nil {
		return text
	}
	if addr = addr.Unmap(); addr.Is4() {
		return addr.AppendTo(buffer)
	}
	network, _ := addr.Prefix(ipv6Bits) // the bits were checked
	return network.AppendTo(buffer)
}

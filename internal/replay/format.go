package replay

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

	"github.com/stint-go/stint/internal/display"
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
	checked  bool // the requests spend nothing
}

var (
	errNoID      = errors.New("names no id") // not a request, or one without an id
	errNotJSON   = errors.New("is not a JSON object")
	errFieldTime = errors.New("has a time that cannot be read: see --time and --time-format")
)

// Format says how to read the lines of a log. Errors name its fields as the
// flags of the command.
type Format struct {
	Lines      string // "access", "json", "syslog", or a regular expression
	By         string // the field of the id, or /REGEXP/
	Time       string // the field of the time
	TimeFormat string // layout of the times; "" for the known ones
	Year       int    // of the first line; 0 for the latest that puts it at most a day in the future
	Cost       string // the field of the cost, or /REGEXP/; "" for one token
	SpendIf    string // /REGEXP/ of the lines that spend; the others are only checked. "" for all
	IPv6Bits   int    // leading bits of an IPv6 address that name a client
}

const aPattern = "(?P<"

// DefaultTime is the field that has the time.
const DefaultTime = "time"

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

// Validate returns an error unless lines can be read in the format.
func (f Format) Validate() error {
	_, err := f.reading(&logTime{})
	return err
}

// reading returns the function that reads lines in the format, and times with t.
func (f Format) reading(t *logTime) (reading, error) {
	by, err := compiled("by", f.By)
	if err != nil {
		return nil, err
	}
	cost, err := compiled("cost", f.Cost)
	if err != nil {
		return nil, err
	}
	spends, err := compiled("spend-if", f.SpendIf)
	if err != nil {
		return nil, err
	}
	if f.SpendIf != "" && spends == nil {
		return nil, fmt.Errorf("--spend-if %q: want a regular expression such as '/\" 401 /'", f.SpendIf)
	}
	t.layout, t.year = f.TimeFormat, f.Year
	fixedTime := f.Lines == "access" || f.Lines == "syslog"
	switch {
	case f.Year != 0 && (f.Year < 1970 || f.Year > 2161):
		return nil, fmt.Errorf("--year %d: must be from 1970 to 2161", f.Year)
	case fixedTime && (cmp.Or(f.Time, DefaultTime) != DefaultTime || f.TimeFormat != ""):
		return nil, fmt.Errorf("--time and --time-format go with --lines json or REGEXP: "+
			"--lines %s has its times in a fixed place", f.Lines)
	case f.Lines == "access" && f.Year != 0:
		return nil, errors.New("--year goes with --lines syslog, json or REGEXP: an access log has years")
	case f.Lines == "access":
		return f.access(by, cost, spends)
	case f.Lines == "json":
		return f.json(by, cost, spends, t), nil
	case f.Lines == "syslog":
		return f.syslog(by, cost, spends, t)
	case strings.Contains(f.Lines, aPattern) || strings.Contains(f.Lines, "(?<"):
		return f.pattern(by, cost, spends, t)
	}
	return nil, fmt.Errorf("--lines %q: must be access, json, syslog, or a regular expression with named groups, "+
		"as in %stime>[0-9]+)", f.Lines, aPattern)
}

// costOf reads the cost of a line.
func costOf(text []byte) (int64, error) {
	if text == nil {
		return 0, errNoCost
	}
	n, ok := wholeNumber(text)
	if !ok {
		return 0, fmt.Errorf("has the cost %q: want a whole number from 1", display.Shortened(string(text), 20))
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

func (f Format) access(by, cost, spends *regexp.Regexp) (reading, error) {
	key := keysOfAccess[f.By]
	switch {
	case key == nil && by == nil:
		return nil, fmt.Errorf("--by %q: must be ip, method, path, user, "+
			"or a regular expression such as '/key=([0-9]+)/'", f.By)
	case f.Cost != "" && cost == nil:
		return nil, fmt.Errorf("--cost %q: with --lines access it must be a regular expression such as "+
			"'/n=([0-9]+)/'", f.Cost)
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
		e.at, e.times, e.cost, e.checked = line.unix*1e9, 1, 1, checked(spends, text)
		if cost != nil {
			e.cost, err = costOf(matched(cost, text))
		}
		return e, err
	}, nil
}

// checked reports whether a line does not spend.
func checked(spends *regexp.Regexp, text []byte) bool {
	return spends != nil && !spends.Match(text)
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

func (f Format) json(by, cost, spends *regexp.Regexp, t *logTime) reading {
	return func(text []byte) (e entry, err error) {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil || object == nil {
			return e, errNotJSON
		}
		if by != nil {
			e.id = matched(by, text)
		} else {
			e.id = fieldOf(object, f.By)
		}
		if len(e.id) == 0 {
			return e, errNoID
		}
		e.times, e.cost, e.checked = 1, 1, checked(spends, text)
		switch {
		case cost != nil:
			e.cost, err = costOf(matched(cost, text))
		case f.Cost != "":
			e.cost, err = costOf(fieldOf(object, f.Cost))
		}
		if err == nil {
			e.at, err = t.parse(fieldOf(object, f.Time))
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

func (f Format) pattern(by, cost, spends *regexp.Regexp, t *logTime) (reading, error) {
	line, err := regexp.Compile(f.Lines)
	if err != nil {
		return nil, fmt.Errorf("--lines %q: %w", f.Lines, err)
	}
	groups := slices.DeleteFunc(slices.Clone(line.SubexpNames()), func(name string) bool { return name == "" })
	at, id, tokens := line.SubexpIndex(f.Time), line.SubexpIndex(f.By), line.SubexpIndex(cmp.Or(f.Cost, defaultCost))
	switch {
	case at < 0:
		return nil, fmt.Errorf("--lines has no group %q for the time: it has %s; name another with --time",
			f.Time, strings.Join(groups, ", "))
	case id < 0 && by == nil:
		return nil, fmt.Errorf("--by %q: --lines has no such group: it has %s", f.By, strings.Join(groups, ", "))
	case f.Cost != "" && tokens < 0 && cost == nil:
		return nil, fmt.Errorf("--cost %q: --lines has no such group: it has %s", f.Cost, strings.Join(groups, ", "))
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
		e.times, e.cost, e.checked = 1, 1, checked(spends, text)
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

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
	id      []byte
	at      int64 // Unix nanoseconds
	cost    int64 // tokens of each request
	repeats int64 // requests for which a line about a repeated message stands, or 0
	checked bool  // the requests spend nothing
}

var (
	errNoID      = errors.New("names no id") // not a request, or one without an id
	errNoLine    = errors.New("is no line of requests")
	errNotJSON   = errors.New("is not a JSON object")
	errFieldTime = errors.New("has a time that cannot be read: see --time and --time-format")
)

// FlagError is a mistake in the flags that only the log shows.
type FlagError struct{ error }

// parsed is a line that a source has read. Its bytes are valid until the next line.
type parsed struct {
	time    []byte // as the line has it
	at      int64  // Unix nanoseconds, if timed
	timed   bool
	message []byte // the part that regular expressions search
	repeats int64  // as in entry
}

// source reads the lines of one format.
type source interface {
	parse(text []byte) (parsed, error)

	// field returns a field of the last line, or nil if the line lacks it.
	field(name string) []byte

	// fields returns the names of all fields, or nil if lines may have others.
	fields() []string
}

// Format says how to read the lines of a log. Errors name its fields as the
// flags of the command.
type Format struct {
	Lines      string // the name of a format, or a regular expression; "" to recognize it
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
	_, err := f.reading(&logTime{}, nil)
	return err
}

// reading returns the function that reads lines in the format, and times with t.
// It may call note, to say how it reads them.
func (f Format) reading(t *logTime, note func(string)) (reading, error) {
	by, byErr := compiled("by", f.By)
	cost, costErr := compiled("cost", f.Cost)
	spends, err := compiled("spend-if", f.SpendIf)
	if err := cmp.Or(byErr, costErr, err); err != nil {
		return nil, err
	}
	if f.SpendIf != "" && spends == nil {
		return nil, fmt.Errorf("--spend-if %q: want a regular expression such as '/\" 401 /'", f.SpendIf)
	}
	if f.Year != 0 && (f.Year < 1970 || f.Year > 2161) {
		return nil, fmt.Errorf("--year %d: must be from 1970 to 2161", f.Year)
	}
	t.layout, t.year = f.TimeFormat, f.Year
	var src source
	if f.Lines == "" {
		src = &recognized{f: f, note: note}
	} else if src, err = f.source(note); err != nil {
		return nil, err
	}
	tokens := f.Cost
	_, groups := src.(*pattern)
	if groups {
		tokens = cmp.Or(tokens, defaultCost)
	}
	optional := groups && cost == nil // a line may lack the group
	return func(text []byte) (e entry, err error) {
		line, err := src.parse(kubernetes(text))
		if err != nil {
			return e, err
		}
		value := func(pattern *regexp.Regexp, name string) []byte {
			if pattern != nil {
				return matched(pattern, line.message)
			}
			return src.field(name)
		}
		e.id = value(by, f.By)
		if len(e.id) == 0 || len(e.id) == 1 && e.id[0] == '-' {
			return e, errNoID
		}
		e.repeats, e.cost, e.at = line.repeats, 1, line.at
		e.checked = spends != nil && !spends.Match(line.message)
		if tokens != "" {
			if text := value(cost, tokens); text != nil || !optional {
				if e.cost, err = costOf(text); err != nil {
					return e, err
				}
			}
		}
		if !line.timed {
			e.at, err = t.parse(line.time)
		}
		return e, err
	}, nil
}

// source returns the source of the format that Lines names, or an error if other
// fields do not go with it.
func (f Format) source(note func(string)) (src source, err error) {
	switch {
	case f.Lines == "access":
		src = &access{}
	case f.Lines == "json":
		src = &jsonLines{at: f.Time, found: map[string]string{}, note: note}
	case f.Lines == "syslog":
		src = &syslog{}
	case f.Lines == "w3c":
		src = &w3c{}
	case servers[f.Lines] != nil:
		src = &pattern{line: servers[f.Lines], at: DefaultTime}
	case strings.Contains(f.Lines, aPattern) || strings.Contains(f.Lines, "(?<"):
		src, err = f.pattern()
	default:
		err = fmt.Errorf("--lines %q: must be %s, or a regular expression with named groups, as in %stime>[0-9]+)",
			f.Lines, strings.Join(FormatNames, ", "), aPattern)
	}
	if err != nil {
		return nil, err
	}
	if slices.Contains(FormatNames, f.Lines) && f.Lines != "json" &&
		(cmp.Or(f.Time, DefaultTime) != DefaultTime || f.TimeFormat != "") {
		return nil, fmt.Errorf("--time and --time-format go with --lines json or REGEXP: "+
			"--lines %s has its times in a fixed place", f.Lines)
	}
	if f.Lines == "access" && f.Year != 0 {
		return nil, errors.New("--year goes with --lines syslog, json or REGEXP: an access log has years")
	}
	_, groups := src.(*pattern)
	for _, flagged := range [][2]string{{"by", f.By}, {"cost", f.Cost}} {
		flag, value := flagged[0], flagged[1]
		switch fields := src.fields(); {
		case value == "" || value[0] == '/' || fields == nil:
		case flag == "cost" && !groups:
			return nil, fmt.Errorf("--cost %q: with --lines %s it must be a regular expression such as '/n=([0-9]+)/'",
				value, f.Lines)
		case !slices.Contains(fields, value):
			return nil, fmt.Errorf("--%s %q: must be %s, or a regular expression such as '/key=([0-9]+)/'",
				flag, value, strings.Join(fields, ", "))
		}
	}
	return src, nil
}

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

type jsonLines struct {
	object map[string]json.RawMessage
	at     string            // the field of the time
	found  map[string]string // the first fields that lines had in place of "ip" and "time"
	note   func(string)
}

// otherNames are the fields in which servers log what other formats call ip and
// time.
var otherNames = map[string][]string{
	"ip": {"client_ip", "remote_ip", "remote_addr", "ClientHost", "request.client_ip", "request.remote_ip",
		"httpRequest.remoteIp", "downstream_remote_address", "clientip", "client"},
	DefaultTime: {"ts", "@timestamp", "timestamp", "time_iso8601", "time_local", "start_time", "StartUTC", "msec"},
}

func (j *jsonLines) parse(text []byte) (parsed, error) {
	if clear(j.object); json.Unmarshal(text, &j.object) != nil || j.object == nil {
		return parsed{}, errNotJSON
	}
	return parsed{time: j.field(j.at), message: text}, nil
}

func (j *jsonLines) field(name string) []byte {
	value := fieldOf(j.object, name) // first, whatever other lines have in its place
	if other, found := j.found[name]; value == nil && found {
		value = fieldOf(j.object, other)
	}
	for _, other := range otherNames[name] {
		if value != nil {
			break
		}
		if value = fieldOf(j.object, other); value != nil && j.found[name] == "" {
			j.found[name] = other
			j.note(fmt.Sprintf("%s is the field %s", name, other))
		}
	}
	if addr, err := netip.ParseAddrPort(string(value)); err == nil {
		return []byte(addr.Addr().String())
	}
	return value
}

func (*jsonLines) fields() []string { return nil }

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

// pattern is a regular expression with named groups.
type pattern struct {
	line  *regexp.Regexp
	at    string // the group of the time
	text  []byte
	match []int
}

func (f Format) pattern() (*pattern, error) {
	line, err := regexp.Compile(f.Lines)
	if err != nil {
		return nil, fmt.Errorf("--lines %q: %w", f.Lines, err)
	}
	p := &pattern{line: line, at: f.Time}
	if line.SubexpIndex(f.Time) < 0 {
		return nil, fmt.Errorf("--lines has no group %q for the time: it has %s; name another with --time",
			f.Time, strings.Join(p.fields(), ", "))
	}
	return p, nil
}

func (p *pattern) fields() []string {
	return slices.DeleteFunc(slices.Clone(p.line.SubexpNames()), func(name string) bool { return name == "" })
}

func (p *pattern) parse(text []byte) (parsed, error) {
	p.text, p.match = text, p.line.FindSubmatchIndex(text)
	if p.match == nil {
		return parsed{}, errNoID
	}
	return parsed{time: p.field(p.at), message: text}, nil
}

func (p *pattern) field(name string) []byte {
	if i := p.line.SubexpIndex(name); i >= 0 && p.match[2*i] >= 0 {
		return p.text[p.match[2*i]:p.match[2*i+1]]
	}
	return nil
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

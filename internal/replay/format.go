package replay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-go/stint/internal/display"
)

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
	errFieldTime = errors.New("has a time that cannot be read: see --time and --time-format")
	errUnknown   = errors.New("is of no format that is recognized: name one with --lines, or describe it there")
)

// FlagError is a mistake in the flags that only the log shows.
type FlagError struct{ error }

// Format says how to read the lines of a log. Errors name its fields as the
// flags of the command.
type Format struct {
	Lines      string // the name of a format, or a regular expression; "" to recognize it
	By         string // the field of the id, or /REGEXP/
	Time       string // the field of the time, or /REGEXP/
	TimeFormat string // layout of the times; "" for the known ones
	Year       int    // of the first line; 0 for the latest that puts it at most a day in the future
	Cost       string // the field of the cost, or /REGEXP/; "" for one token
	SpendIf    string // /REGEXP/ of the lines that spend; the others are only checked. "" for all
	IPv6Bits   int    // leading bits of an IPv6 address that name a client
	Proxies    []netip.Prefix
}

// DefaultTime is the field that has the time.
const DefaultTime = "time"

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
	_, err := f.reader(nil)
	return err
}

// reader reads the lines of a log as requests.
type reader struct {
	Format
	*record
	cut
	optional             bool         // a line may lack a field
	note                 func(string) // says how lines are read
	times                logTime
	at, by, cost, spends *regexp.Regexp
	found                map[string]string // the first fields that lines had in place of "ip" and others
	lacking              []string          // the fields of the last line without an id or a time
}

func (f Format) reader(note func(string)) (r *reader, err error) {
	r = &reader{Format: f, note: note, found: map[string]string{}}
	r.Time, r.times.layout, r.times.year = cmp.Or(f.Time, DefaultTime), f.TimeFormat, f.Year
	for _, v := range []struct {
		flag, value string
		pattern     **regexp.Regexp
	}{{"time", f.Time, &r.at}, {"by", f.By, &r.by}, {"cost", f.Cost, &r.cost}, {"spend-if", f.SpendIf, &r.spends}} {
		if *v.pattern, err = compiled(v.flag, v.value); err != nil {
			return nil, err
		}
	}
	if f.SpendIf != "" && r.spends == nil {
		return nil, fmt.Errorf("--spend-if %q: want a regular expression such as '/\" 401 /'", f.SpendIf)
	}
	if f.Year != 0 && (f.Year < 1970 || f.Year > 2161) {
		return nil, fmt.Errorf("--year %d: must be from 1970 to 2161", f.Year)
	}
	if f.Lines == "" {
		return r, nil
	}
	return r, r.use(f.Lines)
}

// use makes lines the format, if the fields of the flags go with it.
func (r *reader) use(lines string) error {
	if i := slices.Index(FormatNames(), lines); i >= 0 {
		r.record, r.cut = formats[i].begin()
	} else if !strings.Contains(lines, "(?P<") && !strings.Contains(lines, "(?<") {
		return fmt.Errorf("--lines %q: must be %s, or a regular expression with named groups, as in (?P<time>[0-9]+)",
			lines, strings.Join(FormatNames(), ", "))
	} else if line, err := regexp.Compile(lines); err != nil {
		return fmt.Errorf("--lines %q: %w", lines, err)
	} else {
		r.record, r.cut = groups(line)
		if r.optional = r.cost == nil; r.Cost == "" && slices.Contains(r.names, "cost") {
			r.Cost = "cost"
		}
	}
	for _, flagged := range [][2]string{{"time", r.Time}, {"by", r.By}, {"cost", r.Cost}} {
		flag, value := flagged[0], flagged[1]
		if r.names != nil && value != "" && value[0] != '/' && !slices.Contains(r.names, value) {
			return fmt.Errorf("--%s %q: must be %s, or a regular expression such as '/key=([0-9]+)/'",
				flag, value, strings.Join(r.names, ", "))
		}
	}
	r.Lines = lines
	return nil
}

// read parses a line. The id in the entry is valid until the next call. If the
// format is not known, read recognizes it by the line and those after it.
func (r *reader) read(line []byte, ahead func() []byte) (e entry, err error) {
	if r.cut == nil {
		lines := bytes.SplitN(ahead(), []byte("\n"), 100)
		f := recognize(append(lines[:len(lines)-1], line))
		if f == nil {
			return e, errUnknown
		}
		if err := r.use(f.name); err != nil {
			return e, FlagError{fmt.Errorf("the log is read as --lines %s: %w", f.name, err)}
		}
		if f != &formats[0] {
			r.note(fmt.Sprintf("read as --lines %s: %s", f.name, f.about))
		}
	}
	if err := r.cut(r.record, unwrapped(line)); err != nil {
		return e, err
	}
	value := func(pattern *regexp.Regexp, name string) []byte {
		if pattern != nil {
			return matched(pattern, r.message)
		}
		return r.named(name)
	}
	e = entry{value(r.by, r.By), 0, 1, r.repeats, r.spends != nil && !r.spends.Match(r.message)}
	if len(e.id) == 0 || len(e.id) == 1 && e.id[0] == '-' {
		r.lacking = r.names
		return e, errNoID
	}
	if r.Cost != "" {
		if text := value(r.cost, r.Cost); text != nil || !r.optional {
			var ok bool
			if e.cost, ok = wholeNumber(text); !ok {
				return e, fmt.Errorf("has the cost %q: want a whole number from 1 (--cost %s)", display.Shortened(string(text), 20), r.Cost)
			}
		}
	}
	if e.at, err = r.times.parse(value(r.at, r.Time)); err == errFieldTime {
		r.lacking = r.names
	}
	return e, err
}

// named returns a field of the last line, or what the line has in its place.
func (r *reader) named(name string) []byte {
	value := r.field(name) // first, whatever other lines have in its place
	if other, found := r.found[name]; value == nil && found {
		value = r.field(other)
	}
	for _, other := range otherNames[name] {
		if value != nil {
			break
		}
		if value = r.field(other); value != nil && r.found[name] == "" {
			r.found[name] = other
			r.note(fmt.Sprintf("%s is the field %s", name, other))
		}
	}
	return value
}

// wholeNumber reads a number from 1 to 10¹⁸.
func wholeNumber(text []byte) (n int64, ok bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil && n > 0 && n <= 1e18
}

// matched returns the first group of the match, or all of it if there are no
// groups.
func matched(pattern *regexp.Regexp, text []byte) []byte {
	m := pattern.FindSubmatchIndex(text)
	if m == nil {
		return nil
	}
	return group(m, min(1, len(m)/2-1), text)
}

package replay

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// FormatNames are the formats that have a name.
var FormatNames = []string{"access", "alb", "envoy", "haproxy", "json", "s3", "syslog", "w3c"}

// servers are the formats of servers whose lines a regular expression
// describes, as their manuals do: AWS load balancers and S3, Envoy's default
// and HAProxy's httplog. The address that Envoy logs is the last one of
// X-Forwarded-For, which it added.
var servers = map[string]*regexp.Regexp{
	"alb": regexp.MustCompile(`^(?:https?|h2|grpcs?|wss?) (?P<time>\S+Z) \S+ (?P<ip>\S+):[0-9]+ ` +
		`\S+ \S+ \S+ \S+ \S+ \S+ \S+ \S+ "(?P<method>\S+) (?:\w+://[^/ ]*)?(?P<path>[^ ?]*)`),
	"envoy": regexp.MustCompile(`^\[(?P<time>[^\]]+Z)\] "(?P<method>\S+) (?P<path>[^ ?]*)[^"]*" [0-9]+ ` +
		`.*? [0-9]+ [0-9]+ [0-9]+ \S+ "(?:[^"]*, ?)?(?P<ip>[^", ]+)"`),
	"haproxy": regexp.MustCompile(`(?P<ip>[0-9A-Fa-f.:]+):[0-9]+ \[(?P<time>[0-9]{2}/\w{3}/[0-9:.]+)\] ` +
		`\S+ \S+/\S+ [-+/0-9]+ .*?"(?P<method>\S+) (?P<path>[^ ?]*)`),
	"s3": regexp.MustCompile(`^\S+ (?P<bucket>\S+) \[(?P<time>[^\]]+)\] (?P<ip>\S+) (?P<user>\S+) \S+ ` +
		`(?P<operation>[A-Z][\w.]+) (?P<path>\S+) `),
}

// w3c reads the Extended Log Format of W3C, as IIS and CloudFront write it. The line
// #Fields: names the columns.
type w3c struct {
	columns []string
	values  [][]byte
	at      []byte
}

// namesInW3C are the columns that other formats call otherwise.
var namesInW3C = map[string]string{"ip": "c-ip", "user": "cs-username", "method": "cs-method", "path": "cs-uri-stem"}

func (w *w3c) parse(text []byte) (parsed, error) {
	if bytes.HasPrefix(text, []byte("#")) {
		if fields, ok := bytes.CutPrefix(text, []byte("#Fields:")); ok {
			w.columns = strings.Fields(string(fields))
		}
		return parsed{}, errNoLine
	}
	separator := " " // of IIS; CloudFront has tabs
	if bytes.ContainsRune(text, '\t') {
		separator = "\t"
	}
	if w.values = bytes.Split(text, []byte(separator)); len(w.values) != len(w.columns) {
		return parsed{}, fmt.Errorf("has %d columns, and the line #Fields: before it names %d", len(w.values), len(w.columns))
	}
	w.at = append(append(append(w.at[:0], w.field("date")...), ' '), w.field("time")...)
	return parsed{time: w.at, message: text}, nil
}

func (w *w3c) field(name string) []byte {
	if other, ok := namesInW3C[name]; ok {
		name = other
	}
	if i := slices.Index(w.columns, name); i >= 0 {
		return w.values[i]
	}
	return nil
}

func (*w3c) fields() []string { return nil }

// recognized takes its format from the first line that is of one. Lines before it
// are malformed.
type recognized struct {
	source
	f    Format
	note func(string)
}

var errUnknown = errors.New("is of no format that is recognized: name one with --lines, or describe it there")

func (r *recognized) parse(text []byte) (parsed, error) {
	if r.source == nil {
		if r.f.Lines = recognize(text); r.f.Lines == "" {
			return parsed{}, errUnknown
		}
		src, err := r.f.source(r.note)
		if err != nil {
			return parsed{}, FlagError{fmt.Errorf("the log is read as --lines %s: %w", r.f.Lines, err)}
		}
		if r.source = src; r.f.Lines != "access" {
			r.note("read as --lines " + r.f.Lines)
		}
	}
	return r.source.parse(text)
}

// recognize returns the name of the format of a line, or "".
func recognize(text []byte) string {
	if _, err := (&access{}).parse(text); err == nil {
		return "access"
	}
	if _, err := (&jsonLines{note: func(string) {}}).parse(text); err == nil {
		return "json"
	}
	for _, directive := range []string{"#Fields:", "#Version:", "#Software:", "#Date:"} {
		if bytes.HasPrefix(text, []byte(directive)) {
			return "w3c"
		}
	}
	for name, line := range servers { // no line is of two
		if line.Match(text) {
			return name
		}
	}
	if _, err := (&syslog{}).parse(text); err == nil {
		return "syslog"
	}
	return ""
}

// kubernetes returns a line without what the logs of containers have before it,
// such as "2026-03-01T09:00:01.5Z stdout F ".
func kubernetes(text []byte) []byte {
	return text[len(containerPrefix.Find(text)):]
}

var containerPrefix = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+ (?:stdout|stderr) F `)

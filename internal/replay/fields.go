package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// record is a line as fields. Its bytes are valid until the next line.
type record struct {
	names   []string // of the fields of all lines, or of the last one if lines differ: then nil at first
	values  [][]byte // of the last line; nil for a field that it lacks
	message []byte   // the part that regular expressions search
	repeats int64    // as in entry
}

// cut puts the fields of a line into the record.
type cut func(r *record, line []byte) error

// field returns a field of the last line, or nil if the line lacks it.
func (r *record) field(name string) []byte {
	if i := slices.Index(r.names, name); i >= 0 && i < len(r.values) {
		return r.values[i]
	}
	return nil
}

var (
	errNoLine  = errors.New("is no line of requests")
	errNotJSON = errors.New("is not a JSON object")
	errNoPairs = errors.New("does not begin with KEY=VALUE")
)

// otherNames are the fields in which servers log what stint calls ip and so on.
var otherNames = map[string][]string{
	"ip": {"client_ip", "remote_ip", "remote_addr", "ClientHost", "request.client_ip", "request.remote_ip",
		"httpRequest.remoteIp", "httpRequest.clientIp", "downstream_remote_address", "clientip", "c-ip", "ClientIP",
		"properties.clientIP", "req.remoteAddress", "req.ip", "clientIp", "remoteAddr", "remote_address", "remote", "addr", "client"},
	DefaultTime: {"ts", "@timestamp", "timestamp", "time_iso8601", "time_local", "start_time", "StartUTC", "msec",
		"EdgeStartTimestamp", "started_at", "requestTime", "timeStamp", "datetime", "date", "t"},
	"method": {"cs-method", "request.method", "RequestMethod", "ClientRequestMethod", "httpRequest.requestMethod", "httpMethod"},
	"path":   {"cs-uri-stem", "request.uri", "RequestPath", "ClientRequestPath", "ClientRequestURI", "httpRequest.requestUrl", "uri", "url"},
	"status": {"sc-status", "DownstreamStatus", "EdgeResponseStatus", "response.status", "httpRequest.status"},
	"user":   {"cs-username", "user_id", "ClientUsername"},
}

// groups returns the record and the cut of lines that a regular expression
// describes. Its named groups are the fields.
func groups(pattern *regexp.Regexp) (*record, cut) {
	all := pattern.SubexpNames()
	names := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "" })
	return &record{names: names}, func(r *record, line []byte) error {
		match := pattern.FindSubmatchIndex(line)
		if match == nil {
			return errNoID
		}
		r.values, r.message = r.values[:0], line
		for i, name := range all {
			if name != "" {
				r.values = append(r.values, group(match, i, line))
			}
		}
		return nil
	}
}

// group returns a group of a match, or nil if it has no part in it.
func group(match []int, i int, text []byte) []byte {
	if match[2*i] < 0 {
		return nil
	}
	return text[match[2*i]:match[2*i+1]]
}

// addressed is groups for lines that have the client's address anywhere in the
// second group, which is the last.
func addressed(pattern *regexp.Regexp) (*record, cut) {
	fields, parse := groups(pattern)
	return fields, func(r *record, line []byte) error {
		err := parse(r, line)
		if err == nil {
			r.values[1] = sender(r.values[1], true)
		}
		return err
	}
}

// w3c reads the Extended Log Format of W3C, as IIS and CloudFront write it. The line
// #Fields: names the columns. The time is their date and time.
func w3c(r *record, line []byte) error {
	if bytes.HasPrefix(line, []byte("#")) {
		if fields, ok := bytes.CutPrefix(line, []byte("#Fields:")); ok {
			r.names = strings.Fields(string(fields))
		}
		return errNoLine
	}
	separator := " " // of IIS; CloudFront has tabs
	if bytes.ContainsRune(line, '\t') {
		separator = "\t"
	}
	if r.values = bytes.Split(line, []byte(separator)); len(r.values) != len(r.names) {
		return fmt.Errorf("has %d columns, and the line #Fields: before it names %d", len(r.values), len(r.names))
	}
	if i := slices.Index(r.names, "time"); i >= 0 {
		r.values[i] = slices.Concat(r.field("date"), []byte(" "), r.values[i])
	}
	r.message = line
	return nil
}

var logfmtPair = lazily(`([\w.@/-]+)=("(?:[^"\\]|\\.)*"|\S*)`)

// logfmt reads KEY=VALUE pairs, as Go's slog.TextHandler writes them.
func logfmt(r *record, line []byte) error {
	r.names, r.values, r.message = r.names[:0], r.values[:0], line
	for _, match := range logfmtPair().FindAllSubmatchIndex(line, -1) {
		if len(r.names) > 0 || match[0] == 0 {
			r.names = append(r.names, string(group(match, 1, line)))
			r.values = append(r.values, bytes.Trim(group(match, 2, line), `"`))
		}
	}
	if len(r.names) < 2 {
		return errNoPairs
	}
	return nil
}

// jsonLine reads an object. "request.remote_ip" is a field of an object inside it.
func jsonLine(r *record, line []byte) error {
	r.names, r.values, r.message = r.names[:0], r.values[:0], line
	if !r.add("", bytes.TrimSpace(line)) {
		return errNotJSON
	}
	return nil
}

// add adds the fields of an object. Only text and numbers have a value. It returns
// false if there is no object, or one too deep in others: each is read once more.
func (r *record) add(prefix string, object []byte) bool {
	var fields map[string]json.RawMessage
	if len(object) == 0 || object[0] != '{' || strings.Count(prefix, ".") > 8 || json.Unmarshal(object, &fields) != nil {
		return false
	}
	for name, raw := range fields {
		if r.add(prefix+name+".", raw) {
			continue
		}
		var value []byte
		var text string
		switch c := raw[0]; {
		case c == '"' && (bytes.IndexByte(raw, '\\') < 0 || !utf8.Valid(raw)): // Unmarshal would replace bytes, and make two ids one
			value = raw[1 : len(raw)-1]
		case c == '"' && json.Unmarshal(raw, &text) == nil:
			value = []byte(text)
		case c == '-' || c >= '0' && c <= '9':
			value = raw
		}
		r.names, r.values = append(r.names, prefix+name), append(r.values, value)
	}
	return true
}

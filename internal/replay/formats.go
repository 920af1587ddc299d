package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// logFormat is a format that has a name.
type logFormat struct {
	name  string
	about string
	line  string // a regular expression of the lines, if cut needs one
	cut   func(line *regexp.Regexp) (*record, cut)
}

// someTime matches the times that lines begin with. Names of zones are listed,
// because a word such as GET may follow.
const someTime = `[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}(?: - |[ T])[0-9:.,]{8,}(?:Z| ?[-+][0-9]{2}:?[0-9]{2}| (?:UTC|GMT|CES?T|[ECMP][SD]T)\b)?|` +
	`[0-9]{2}[-/]\w{3}[-/][0-9]{4}[: ][0-9:.]{8,}(?: [-+][0-9]{4})?|` + syslogTime

// formats are the formats by name. The first one that reads at least half as many
// lines as any other is recognized. The regular expressions follow the manuals.
// A line without the address, if the group is optional, is no request.
var formats = []logFormat{
	{"access", "Common or Combined Log Format, also with the server before it", "", accessLines},
	{"json", "an object in each line", "", jsonLines},
	{"w3c", "IIS, CloudFront", "", w3cLines},
	{"alb", "AWS load balancers", `^(?:https?|h2|grpcs?|wss?) (?P<time>\S+Z) \S+ (?P<ip>\S+):[0-9]+ ` +
		`\S+ \S+ \S+ \S+ (?P<status>\S+) \S+ \S+ \S+ "(?P<method>\S+) (?:\w+://[^/ ]*)?(?P<path>[^ ?]*)`, groups},
	{"apache-error", "Apache's error log", `^\[(?P<time>\w{3} \w{3} [0-9 ]{2} [0-9:.]+ [0-9]{4})\] (?:.*?\[(?:client|remote) (?P<ip>\S+)\])?`, groups},
	{"envoy", "Envoy's default", `^\[(?P<time>[^\]]+Z)\] "(?P<method>\S+) (?P<path>[^ ?]*)[^"]*" (?P<status>[0-9]+) ` +
		`.*? [0-9]+ [0-9]+ [0-9]+ \S+ "(?P<ip>[^"]+)"`, groups},
	{"fail2ban", "fail2ban.log: what it found", `^(?P<time>[0-9-]{10} [0-9:,]+) fail2ban\.\w+ *\[[0-9]+\]: ` +
		`\w+ +(?:\[(?P<jail>[^\]]+)\] Found (?P<ip>\S+))?`, groups},
	{"haproxy", "HAProxy's httplog", `(?P<ip>[0-9A-Fa-f.:]+):[0-9]+ \[(?P<time>[0-9]{2}/\w{3}/[0-9:.]+)\] ` +
		`\S+ \S+/\S+ [-+/0-9]+ (?P<status>\S+) .*?"(?P<method>\S+) (?P<path>[^ ?]*)`, groups},
	{"nginx-error", "nginx's error log: what limit_req and limit_conn denied or delayed",
		`^(?P<time>[0-9/]{10} [0-9:]{8}) \[\w+\] [0-9#]+: (?:\*[0-9]+ (?:limiting|delaying) .*?client: (?P<ip>[^,]+)` +
			`(?:, server: [^,]*)?(?:, request: "(?P<method>\S+) (?P<path>[^ ?"]*))?)?`, groups},
	{"s3", "access logs of S3", `^\S+ (?P<bucket>\S+) \[(?P<time>[^\]]+)\] (?P<ip>\S+) (?P<user>\S+) \S+ ` +
		`(?P<operation>[A-Z][\w.]+) (?P<path>\S+) `, groups},
	{"logfmt", "KEY=VALUE pairs", "", logfmtLines},
	{"syslog", `rsyslog, syslogd, RFC 5424, journalctl; ip is the address after the last "from"`, "", syslog},
	{"text", `lines that begin with a time; ip is the address after the last "from", or the first one`,
		`^(?:[A-Z]+ +)?\[?(?:[A-Z]+\] *)?\[?(?P<time>` + someTime + `)[\]\s](?P<ip>.*)`, addressed},
}

// FormatNames returns the names of the formats.
func FormatNames() (names []string) {
	for _, f := range formats {
		names = append(names, f.name)
	}
	return names
}

// AboutFormats returns a line about each format.
func AboutFormats() string {
	var b strings.Builder
	for _, f := range formats {
		fmt.Fprintf(&b, "  %-12s %s\n", f.name, f.about)
	}
	return b.String()
}

// The formats whose lines need no regular expression.
func accessLines(*regexp.Regexp) (*record, cut) { return &record{names: accessFields}, access }
func jsonLines(*regexp.Regexp) (*record, cut)   { return new(record), jsonLine }
func w3cLines(*regexp.Regexp) (*record, cut)    { return new(record), w3c }
func logfmtLines(*regexp.Regexp) (*record, cut) { return new(record), logfmt }

// begin returns the record and the cut of a log's lines.
func (f *logFormat) begin() (*record, cut) { return f.cut(regexp.MustCompile(f.line)) }

// recognize returns the format of the first lines of a log, or nil.
func recognize(lines [][]byte) *logFormat {
	read := make([]int, len(formats))
	for i := range formats {
		r, cut := formats[i].begin()
		timed := r.names != nil // otherwise the time may have any name
		for _, line := range lines {
			err := cut(r, unwrapped(line))
			if err == nil && timed {
				_, err = (&logTime{year: 2024}).parse(r.field(DefaultTime))
			}
			if err == nil || err == errNoLine {
				read[i]++
			}
		}
	}
	most := slices.Max(read)
	if most == 0 {
		return nil
	}
	return &formats[slices.IndexFunc(read, func(n int) bool { return 2*n >= most })]
}

// lazily returns a function that compiles a regular expression when it is first
// called: commands that read no log do not pay for it.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// wrapper is what the logs of containers have before each line, such as
// "2026-03-01T09:00:01.5Z stdout F " of Kubernetes and "web-1  | " of Compose.
var wrapper = lazily(`^(?:[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+ (?:stdout|stderr) F |[A-Za-z][\w.-]*[-_][0-9]+ +\| )`)

// unwrapped returns the line of a program as it was before Kubernetes, Compose,
// Docker or journald took it in. An entry of journald becomes a line of syslog.
func unwrapped(text []byte) []byte {
	head := text[:min(len(text), 80)]
	if bytes.Contains(head, []byte(" F ")) || bytes.Contains(head, []byte("| ")) { // most lines need no wrapper
		text = text[len(wrapper().Find(text)):]
	}
	docker := bytes.HasPrefix(text, []byte(`{"log":`))
	if !docker && (len(text) == 0 || text[0] != '{' || !bytes.Contains(text, []byte(`"__REALTIME_TIMESTAMP"`))) {
		return text
	}
	var in struct {
		Log, Stream, Message string
		Time                 string `json:"__REALTIME_TIMESTAMP"`
		Host                 string `json:"_HOSTNAME"`
		Program              string `json:"SYSLOG_IDENTIFIER"`
	}
	if err := json.Unmarshal(text, &in); err != nil || docker && in.Stream == "" {
		return text
	}
	if docker {
		return []byte(strings.TrimRight(in.Log, "\r\n"))
	}
	return fmt.Appendf(nil, "%s %s %s: %s", in.Time, in.Host, in.Program, in.Message)
}

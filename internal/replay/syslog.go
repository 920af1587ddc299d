package replay

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"

	"github.com/stint-go/stint/internal/display"
)

// mostRepeats bounds the requests of one line, because each is decided.
const mostRepeats = 1_000_000

var (
	errSyslog   = errors.New(`does not begin with "TIME HOST PROGRAM:", as syslog does`)
	errRepeat   = errors.New("says that a message was repeated, but ends before the message does")
	errNoBefore = errors.New("says that the last message was repeated, but the host has none before it")
)

// syslog returns the record and the cut of lines that rsyslog, syslogd or journalctl
// writes:
//
//	Mar  1 09:00:01 HOST PROGRAM[PID]: MESSAGE
//	2026-03-01T09:00:01.5+00:00 HOST PROGRAM: MESSAGE
//	Sun 2026-03-01 09:00:01 UTC HOST PROGRAM[PID]: MESSAGE
//	1 2026-03-01T09:00:01.5Z HOST PROGRAM PID ID [DATA] MESSAGE
//	Mar  1 09:00:01 HOST PROGRAM[PID]: message repeated 5 times: [ MESSAGE]
//	Mar  1 09:00:01 HOST last message repeated 5 times
//
// The fourth is RFC 5424. A priority, <34>, may come first. If a message was
// repeated, the line has the fields of that message.
func syslog(*regexp.Regexp) (*record, cut) {
	lasts := map[string][]byte{} // the last message of each host, after the program's name
	return &record{names: []string{"ip", "host", "program", "time"}}, func(r *record, line []byte) error {
		head := syslogHead().FindSubmatchIndex(line)
		if head == nil {
			return errSyslog
		}
		at, host, rest := group(head, 2, line), group(head, 3, line), group(head, 4, line)
		var times []byte
		if m := lastRepeated().FindSubmatch(rest); m != nil {
			if times, rest = m[1], lasts[string(host)]; rest == nil {
				return errNoBefore
			}
		}
		tag := syslogTag
		if head[2] >= 0 {
			tag = rfc5424Tag
		}
		m := tag().FindSubmatch(rest)
		if m == nil {
			return errSyslog
		}
		lasts[string(host)] = append(lasts[string(host)][:0], rest...)
		program, message := m[1], m[2]
		if bytes.HasPrefix(message, []byte("message repeated ")) {
			if m = repeated().FindSubmatch(message); m == nil {
				return errRepeat
			}
			message = m[2]
			if times == nil {
				times = m[1]
			}
		}
		if r.repeats = 0; times != nil {
			var ok bool
			if r.repeats, ok = wholeNumber(times); !ok || r.repeats > mostRepeats {
				return fmt.Errorf("says that a message was repeated %s times: want 1 to %d",
					display.Shortened(string(times), 20), mostRepeats)
			}
		}
		r.values, r.message = append(r.values[:0], sender(message, false), host, program, at), message
		return nil
	}
}

const syslogTime = `[A-Z][a-z]{2} [ 0-9][0-9] [0-9:.]{8,}|[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+|` +
	`[A-Z][a-z]{2} [0-9-]{10} [0-9:.]{8,} \S+|[0-9]{9,}(?:\.[0-9]+)?`

var (
	syslogHead   = lazily(`^(?:<[0-9]{1,3}>)?(1 )?(` + syslogTime + `) (\S+) (.*)$`)
	syslogTag    = lazily(`^([^\s:\[]+)(?:\[[^\]]*\])?(?: \S+)?:(?: (.*))?$`)
	rfc5424Tag   = lazily(`^(\S+) \S+ \S+ (?:-|(?:\[(?:[^\]"]|"(?:\\.|[^"\\])*")*\])+)(?: (.*))?$`)
	repeated     = lazily(`^message repeated ([0-9]+) times: \[ ?(.*)\]$`)
	lastRepeated = lazily(`^(?:--- )?last message repeated ([0-9]+) times?(?: ---)?$`)
)

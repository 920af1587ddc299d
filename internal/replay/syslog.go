package replay

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/stint-go/stint/internal/display"
)

// syslogLine is a line of a log that rsyslog, syslogd or journalctl writes. Its
// bytes are part of the line, or of a copy of the host's last message.
type syslogLine struct {
	time, host, program, message []byte

	times    int64 // requests for which the line stands
	repeated bool  // it says that a message was repeated
}

// mostRepeats bounds the requests of one line, because each is decided.
const mostRepeats = 1_000_000

var (
	errSyslog   = errors.New(`does not begin with "TIME HOST PROGRAM:", as syslog does`)
	errRepeat   = errors.New("says that a message was repeated, but ends before the message does")
	errNoBefore = errors.New("says that the last message was repeated, but the host has none before it")
)

// syslog reads lines of syslog. The last message of each host may be repeated.
type syslog struct {
	last map[string]syslogLine
	line syslogLine
}

// read reads one of these lines.
//
//	Mar  1 09:00:01 HOST PROGRAM[PID]: MESSAGE
//	2026-03-01T09:00:01.5+00:00 HOST PROGRAM: MESSAGE
//	Mar  1 09:00:01 HOST PROGRAM[PID]: message repeated 5 times: [ MESSAGE]
//	Mar  1 09:00:01 HOST last message repeated 5 times
//
// A priority, <34>, may come first.
func (s *syslog) read(text []byte) (l syslogLine, err error) {
	text = text[len(syslogPriority.Find(text)):]
	n := len(syslogLayout)
	if len(text) > 0 && text[0] >= '0' && text[0] <= '9' {
		n = bytes.IndexByte(text, ' ')
	}
	if n < 0 || len(text) <= n || text[n] != ' ' {
		return l, errSyslog
	}
	l.time, text = text[:n], text[n+1:]
	host, text, ok := bytes.Cut(text, []byte(" "))
	if !ok || len(host) == 0 {
		return l, errSyslog
	}
	l.host = host
	if m := lastRepeated.FindSubmatch(text); m != nil {
		last, ok := s.last[string(host)]
		if !ok {
			return l, errNoBefore
		}
		l.program, l.message = last.program, last.message
		l.times, err = repeats(m[1])
		l.repeated = true
		return l, err
	}
	tag, message, ok := bytes.Cut(text, []byte(":"))
	if !ok || len(tag) == 0 || len(message) > 0 && message[0] != ' ' {
		return l, errSyslog
	}
	l.program, _, _ = bytes.Cut(tag, []byte("["))
	l.message, l.times = bytes.TrimPrefix(message, []byte(" ")), 1
	if bytes.HasPrefix(l.message, []byte("message repeated ")) {
		m := repeated.FindSubmatch(l.message)
		if m == nil {
			return l, errRepeat
		}
		l.message, l.repeated = m[2], true
		l.times, err = repeats(m[1])
	}
	if err == nil {
		s.remember(l)
	}
	return l, err
}

var (
	syslogPriority = regexp.MustCompile(`^<[0-9]{1,3}>`)
	repeated       = regexp.MustCompile(`^message repeated ([0-9]+) times: \[ ?(.*)\]$`)
	lastRepeated   = regexp.MustCompile(`^(?:--- )?last message repeated ([0-9]+) times?(?: ---)?$`)
)

// repeats reads how often a message was repeated.
func repeats(text []byte) (int64, error) {
	n, ok := wholeNumber(text)
	if !ok || n > mostRepeats {
		return 0, fmt.Errorf("says that a message was repeated %s times: want 1 to %d",
			display.Shortened(string(text), 20), mostRepeats)
	}
	return n, nil
}

// remember keeps the message until the host's next one.
func (s *syslog) remember(l syslogLine) {
	if s.last == nil {
		s.last = map[string]syslogLine{}
	}
	last := s.last[string(l.host)]
	last.program = append(last.program[:0], l.program...)
	last.message = append(last.message[:0], l.message...)
	s.last[string(l.host)] = last
}

// address returns the word after the last "from", if that is an address. A user
// name may contain "from" too, but sshd writes the address after the name.
func (l syslogLine) address() []byte {
	m := lastFrom.FindSubmatch(l.message)
	if m == nil {
		return nil
	}
	if _, err := netip.ParseAddr(string(m[1])); err != nil {
		return nil
	}
	return m[1]
}

var lastFrom = regexp.MustCompile(`^(?:.* )?from ([^ ]+)`)

// parse reads a line. Regular expressions are matched against the message, or
// against the repeated message if the line stands for that.
func (s *syslog) parse(text []byte) (p parsed, err error) {
	s.line, err = s.read(text)
	return parsed{time: s.line.time, message: s.line.message, times: s.line.times, repeated: s.line.repeated}, err
}

func (s *syslog) field(name string) []byte {
	switch name {
	case "ip":
		return s.line.address()
	case "host":
		return s.line.host
	}
	return s.line.program
}

func (*syslog) check(flag, name string) error {
	return fixedFields(flag, name, "syslog", "'/Failed password for .* from ([^ ]+)/'", "ip", "host", "program")
}

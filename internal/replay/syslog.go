package replay

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
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

// syslog reads lines of a log that rsyslog, syslogd or journalctl writes:
//
//	Mar  1 09:00:01 HOST PROGRAM[PID]: MESSAGE
//	2026-03-01T09:00:01.5+00:00 HOST PROGRAM: MESSAGE
//	Mar  1 09:00:01 HOST PROGRAM[PID]: message repeated 5 times: [ MESSAGE]
//	Mar  1 09:00:01 HOST last message repeated 5 times
//
// A priority, <34>, may come first. If a message was repeated, the line has the
// fields of that message.
type syslog struct {
	host []byte
	said
	last map[string]said // by each host
}

// said is a message of a program. Its bytes are part of the line, or of a copy.
type said struct{ program, message []byte }

func (s *syslog) parse(text []byte) (p parsed, err error) {
	text = text[len(syslogPriority.Find(text)):]
	n := len(syslogLayout)
	if len(text) > 0 && text[0] >= '0' && text[0] <= '9' {
		n = bytes.IndexByte(text, ' ')
	}
	if n < 0 || len(text) <= n || text[n] != ' ' {
		return p, errSyslog
	}
	p.time, text = text[:n], text[n+1:]
	host, text, ok := bytes.Cut(text, []byte(" "))
	if !ok || len(host) == 0 {
		return p, errSyslog
	}
	s.host = host
	if m := lastRepeated.FindSubmatch(text); m != nil {
		if s.said, ok = s.last[string(host)]; !ok {
			return p, errNoBefore
		}
		p.message = s.message
		p.repeats, err = repeats(m[1])
		return p, err
	}
	tag, message, ok := bytes.Cut(text, []byte(":"))
	if !ok || len(tag) == 0 || len(message) > 0 && message[0] != ' ' {
		return p, errSyslog
	}
	s.program, _, _ = bytes.Cut(tag, []byte("["))
	s.message = bytes.TrimPrefix(message, []byte(" "))
	if bytes.HasPrefix(s.message, []byte("message repeated ")) {
		m := repeated.FindSubmatch(s.message)
		if m == nil {
			return p, errRepeat
		}
		s.message = m[2]
		if p.repeats, err = repeats(m[1]); err != nil {
			return p, err
		}
	}
	s.remember()
	p.message = s.message
	return p, nil
}

var (
	syslogPriority = regexp.MustCompile(`^<[0-9]{1,3}>`)
	repeated       = regexp.MustCompile(`^message repeated ([0-9]+) times: \[ ?(.*)\]$`)
	lastRepeated   = regexp.MustCompile(`^(?:--- )?last message repeated ([0-9]+) times?(?: ---)?$`)
)

func repeats(text []byte) (int64, error) {
	n, ok := wholeNumber(text)
	if !ok || n > mostRepeats {
		return 0, fmt.Errorf("says that a message was repeated %s times: want 1 to %d",
			display.Shortened(string(text), 20), mostRepeats)
	}
	return n, nil
}

// remember keeps the message until the host's next one.
func (s *syslog) remember() {
	if s.last == nil {
		s.last = map[string]said{}
	}
	last := s.last[string(s.host)]
	s.last[string(s.host)] = said{append(last.program[:0], s.program...), append(last.message[:0], s.message...)}
}

// address returns the word after the last "from", if that is an address. A user
// name may contain "from" too, but sshd writes the address after the name.
func (s said) address() []byte {
	m := lastFrom.FindSubmatch(s.message)
	if m == nil {
		return nil
	}
	if _, err := netip.ParseAddr(string(m[1])); err != nil {
		return nil
	}
	return m[1]
}

var lastFrom = regexp.MustCompile(`^(?:.* )?from ([^ ]+)`)

func (s *syslog) field(name string) []byte {
	switch name {
	case "ip":
		return s.address()
	case "host":
		return s.host
	}
	return s.program
}

func (*syslog) fields() []string { return []string{"ip", "host", "program"} }

package spell

import (
	"errors"
	"fmt"
	"strings"
)

// MaxID is the length of the longest id, in bytes.
const MaxID = 512

// ErrInvalidID is wrapped by every error about an id.
var ErrInvalidID = errors.New("stint: invalid id")

// Format is stint.IDFormat.
type Format interface {
	Canonical(id string) (string, error)
	String() string
}

// NewFormat returns a format with this name. canonical returns the canonical
// spelling of an id, or the reason why the id is not of this format.
func NewFormat(name string, canonical func(id string) (string, error)) Format {
	return &format{name, canonical}
}

type format struct {
	name      string
	canonical func(id string) (string, error)
}

func (f *format) String() string { return f.name }

func (f *format) Canonical(id string) (string, error) {
	canonical, why := f.canonical(id)
	return Finish(f, id, canonical, why)
}

// Single is the format of the empty id. No other format accepts that id.
var Single = NewFormat("single", func(id string) (string, error) { return id, nil })

// Canonical returns f.Canonical(id) if that has a valid length. Its error wraps
// ErrInvalidID, even if f's error does not.
func Canonical(f Format, id string) (string, error) {
	if f, ok := f.(*format); ok { // it has looked at the length
		return f.Canonical(id)
	}
	canonical, err := f.Canonical(id)
	if err != nil && errors.Is(err, ErrInvalidID) {
		return "", err
	}
	return Finish(f, id, canonical, err)
}

// Finish returns the canonical id. If why is given, or the length of the
// canonical id is wrong, it returns Invalid instead.
func Finish(f Format, id, canonical string, why error) (string, error) {
	switch {
	case why != nil:
	case f != Single:
		why = CheckLen(canonical)
	case id != "":
		why = errors.New("there is one bucket for everyone, and its id is empty")
	}
	if why != nil {
		return "", Invalid(f, id, why)
	}
	return canonical, nil
}

// CheckLen returns the reason why an id is too short or too long, or nil.
func CheckLen(id string) error {
	switch {
	case id == "":
		return errors.New("it is empty")
	case len(id) > MaxID:
		return fmt.Errorf("it is %d bytes long, more than %d", len(id), MaxID)
	}
	return nil
}

// Invalid returns ErrInvalidID with the id, the format, and the reason.
func Invalid(f Format, id string, why error) error { return &idError{f, id, why} }

type idError struct {
	format Format
	id     string
	why    error
}

func (e *idError) Error() string {
	return fmt.Sprintf("%v %s: %s", ErrInvalidID, Quote(e.id), Reason(e))
}

func (e *idError) Unwrap() []error { return []error{ErrInvalidID, e.why} }

// Reason returns the text of an id's error without the id.
func Reason(err error) string {
	var e *idError
	if errors.As(err, &e) {
		return fmt.Sprintf("not of format %v: %v", e.format, e.why)
	}
	return err.Error()
}

// Call returns the name of a format that is made of others: "tuple(a,b)".
func Call[F Format](name string, formats []F) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = f.String()
	}
	return name + "(" + strings.Join(names, ",") + ")"
}

// IsIPv4 reports whether id is an IPv4 address in the spelling of netip.
func IsIPv4(id string) bool {
	n := LeadingIPv4(id)
	return n > 0 && n == len(id)
}

// LeadingIPv4 returns the length of the IPv4 address at the beginning of a text, in the
// spelling of netip, or 0 if there is none.
func LeadingIPv4(text string) int {
	i := 0
	for octet := 1; ; octet++ {
		begin, n := i, 0
		for ; i < len(text); i++ {
			digit := int(text[i]) - '0'
			if digit < 0 || digit > 9 {
				break
			}
			if n = 10*n + digit; n > 255 {
				return 0
			}
			if n == 0 { // no digit follows a leading zero
				i++
				break
			}
		}
		switch {
		case i == begin:
			return 0
		case octet == 4:
			return i
		case i == len(text) || text[i] != '.':
			return 0
		}
		i++
	}
}

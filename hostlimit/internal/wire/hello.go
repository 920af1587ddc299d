package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
)

// Split returns the names in parts that fit into one frame each.
func Split(names stint.Names) (parts []stint.Names) {
	size := 0
	for name, spec := range names {
		if parts == nil || size > PartSize {
			parts, size = append(parts, stint.Names{}), 0
		}
		parts[len(parts)-1][name] = spec
		size += len(spec.Label) + 4*binary.MaxVarintLen16
	}
	return parts
}

// names writes or reads what Declare needs to know of Names.
func (b *Body) names(names *stint.Names) {
	one := func(name stint.Name, spec stint.NameSpec) (stint.Name, stint.NameSpec) {
		single := spec.IDs == stint.Single
		b.name(&name)
		b.bools(&single)
		b.text(&spec.Label, MaxLabel)
		if single {
			spec.IDs = stint.Single
		}
		return name, spec
	}
	n := uint64(len(*names))
	unsigned(b, &n, math.MaxUint16)
	if b.writes {
		for name, spec := range *names {
			one(name, spec)
		}
		return
	}
	*names = make(stint.Names)
	for range n {
		name, spec := one(0, stint.NameSpec{})
		if b.bad {
			return
		}
		(*names)[name] = spec
	}
}

// Mismatch returns ErrNameMismatch if names disagree with ours.
func Mismatch(names, ours stint.Names) error {
	numbers := make(map[string]stint.Name, len(ours))
	for name, spec := range ours {
		numbers[spec.Label] = name
	}
	for name, theirs := range names {
		spec, declared := ours[name]
		number, taken := numbers[theirs.Label]
		switch {
		case declared && spec.Label != theirs.Label:
			return fmt.Errorf("%w: %d is %q in one process and %q in another",
				stint.ErrNameMismatch, name, theirs.Label, spec.Label)
		case taken && number != name:
			return fmt.Errorf("%w: %q is %d in one process and %d in another",
				stint.ErrNameMismatch, theirs.Label, name, number)
		case !declared:
		case (spec.IDs == stint.Single) != (theirs.IDs == stint.Single):
			return fmt.Errorf("%w: %q has one bucket for all ids in one process only", stint.ErrNameMismatch, theirs.Label)
		}
	}
	return nil
}

// WriteHello writes the hello of a guest.
func WriteHello(b *Body) { b.Raw(append([]byte(magic), version)) }

// Hello reads a hello. After another version the error is ErrRefused.
func (b *Body) Hello() error {
	rest, ok := bytes.CutPrefix(b.b, []byte(magic))
	switch {
	case !ok || len(rest) == 0:
	case rest[0] != version:
		return fmt.Errorf("%w: the guest has version %d of the protocol, the owner %d", ErrRefused, rest[0], version)
	case len(rest) == 1:
		return nil
	}
	return fmt.Errorf("%w: not a hello", ErrMessage)
}

// Welcome is what an owner says of itself.
type Welcome struct {
	PID   int
	Now   time.Time     // by the clock of its Limiter
	Asked time.Duration // the guest's time in its ping; 0 if there was none
}

// Welcome writes or reads the owner's answer to a hello or a ping. The error may be
// the owner's: then it refuses the guest.
func (b *Body) Welcome(w *Welcome) (err error) {
	if b.Error(&err); err != nil {
		if e, ok := err.(*remoteError); ok { // in another version the kinds may have other bits
			e.kinds = []error{ErrRefused}
		}
		return err
	}
	signed(b, &w.PID)
	b.time(&w.Now)
	signed(b, &w.Asked)
	return b.End()
}

// Ping writes or reads a question for the owner's time: the time by the guest's own
// clock, which the answer repeats.
func (b *Body) Ping(asked *time.Duration) { signed(b, asked) }

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

// AppendNames appends names: what Declare needs to know of them.
func AppendNames(b []byte, names stint.Names) []byte {
	b = binary.AppendUvarint(b, uint64(len(names)))
	for name, spec := range names {
		b = appendBool(binary.AppendUvarint(b, uint64(name)), spec.ID == stint.Shared)
		b = appendBytes(b, spec.Label)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(spec.Parent)), uint64(spec.Floor))
	}
	return b
}

// Names reads names.
func (r *Body) Names() stint.Names {
	number := func() stint.Name { return stint.Name(r.uint(math.MaxUint16)) }
	names := make(stint.Names)
	for range r.uint(math.MaxUint16) {
		name, shared := number(), r.bool()
		spec := stint.NameSpec{Label: string(r.bytes(MaxLabel)), Parent: number(), Floor: number()}
		if shared {
			spec.ID = stint.Shared
		}
		if r.bad {
			return nil
		}
		names[name] = spec
	}
	return names
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
		case (spec.ID == stint.Shared) != (theirs.ID == stint.Shared):
			return fmt.Errorf("%w: %q has a shared bucket in one process only", stint.ErrNameMismatch, theirs.Label)
		case spec.Parent != theirs.Parent || spec.Floor != theirs.Floor:
			return fmt.Errorf("%w: %q has another Parent or Floor in another process", stint.ErrNameMismatch, theirs.Label)
		}
	}
	return nil
}

// AppendHello appends the hello of a guest.
func AppendHello(b []byte) []byte { return append(append(b, magic...), version) }

// Hello reads a hello. After another version the error is ErrRefused.
func (r *Body) Hello() error {
	rest, ok := bytes.CutPrefix(r.b, []byte(magic))
	switch {
	case !ok || len(rest) == 0:
	case rest[0] != version:
		return fmt.Errorf("%w: the guest has version %d of the protocol, the owner %d", ErrRefused, rest[0], version)
	case len(rest) == 1:
		return nil
	}
	return fmt.Errorf("%w: not a hello", ErrMessage)
}

// FileID identifies a file of one machine. It is zero if it is not known.
type FileID struct{ Device, Inode uint64 }

// Welcome is what an owner says of itself.
type Welcome struct {
	PID   int
	Now   time.Time // by the clock of its Limiter
	File  FileID
	Asked time.Duration // the guest's time in its ping; 0 if there was none
}

// AppendWelcome appends the owner's answer to a hello or a ping.
func AppendWelcome(b []byte, w Welcome) []byte {
	b = binary.AppendVarint(append(b, 0), int64(w.PID)) // no error
	b = appendTime(b, w.Now)
	b = binary.AppendUvarint(binary.AppendUvarint(b, w.File.Device), w.File.Inode)
	return binary.AppendVarint(b, int64(w.Asked))
}

// Welcome reads the answer to a hello or a ping. The error may be the owner's.
func (r *Body) Welcome() (w Welcome, err error) {
	if err := r.Error(); err != nil {
		return w, err
	}
	w.PID = int(r.Int())
	w.Now = r.time()
	w.File = FileID{r.uint(math.MaxUint64), r.uint(math.MaxUint64)}
	w.Asked = time.Duration(r.Int())
	return w, r.End()
}

// AppendPing appends a question for the owner's time. The answer repeats asked,
// the time by the guest's own clock.
func AppendPing(b []byte, asked time.Duration) []byte { return binary.AppendVarint(b, int64(asked)) }

// Ping reads what AppendPing has appended.
func (r *Body) Ping() (asked time.Duration, err error) {
	asked = time.Duration(r.Int())
	return asked, r.End()
}

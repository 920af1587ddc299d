package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
)

// Named is a Name that a process declares.
type Named struct {
	Name          stint.Name
	Label         string
	Shared        bool       // its id is empty
	Parent, Floor stint.Name // of a class
}

// NamedOf returns the Names as messages have them.
func NamedOf(names stint.Names) []Named {
	all := make([]Named, 0, len(names))
	for name, spec := range names {
		all = append(all, Named{name, spec.Label, spec.ID == stint.Shared, spec.Parent, spec.Floor})
	}
	return all
}

// Spec returns what Declare needs to know of a Name.
func (n Named) Spec() stint.NameSpec {
	spec := stint.NameSpec{Label: n.Label, Parent: n.Parent, Floor: n.Floor}
	if n.Shared {
		spec.ID = stint.Shared
	}
	return spec
}

// Split returns the names in parts that fit into one frame each. There is one
// part at least.
func Split(names []Named) (parts [][]Named) {
	size, begin := 0, 0
	for i, n := range names {
		if size > PartSize {
			parts, begin, size = append(parts, names[begin:i]), i, 0
		}
		size += len(n.Label) + 4*binary.MaxVarintLen16
	}
	return append(parts, names[begin:])
}

// AppendNames appends a part of the names. more says that others follow.
func AppendNames(b []byte, names []Named, more bool) []byte {
	b = binary.AppendUvarint(appendBool(b, more), uint64(len(names)))
	for _, n := range names {
		b = appendBytes(appendBool(binary.AppendUvarint(b, uint64(n.Name)), n.Shared), n.Label)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(n.Parent)), uint64(n.Floor))
	}
	return b
}

// Names reads a part of the names.
func (r *Body) Names() (names []Named, more bool) {
	name := func() stint.Name { return stint.Name(r.uint(math.MaxUint16)) }
	more = r.bool()
	for range r.uint(math.MaxUint16) {
		n := Named{Name: name(), Shared: r.bool(), Label: string(r.bytes(MaxLabel))}
		n.Parent, n.Floor = name(), name()
		if r.bad {
			return nil, false
		}
		names = append(names, n)
	}
	return names, more
}

// Mismatch returns ErrNameMismatch if names disagree with ours.
func Mismatch(names []Named, ours stint.Names) error {
	numbers := make(map[string]stint.Name, len(ours))
	for name, spec := range ours {
		numbers[spec.Label] = name
	}
	for _, n := range names {
		spec, declared := ours[n.Name]
		number, taken := numbers[n.Label]
		switch {
		case declared && spec.Label != n.Label:
			return fmt.Errorf("%w: %d is %q in one process and %q in another",
				stint.ErrNameMismatch, n.Name, n.Label, spec.Label)
		case taken && number != n.Name:
			return fmt.Errorf("%w: %q is %d in one process and %d in another",
				stint.ErrNameMismatch, n.Label, n.Name, number)
		case !declared:
		case (spec.ID == stint.Shared) != n.Shared:
			return fmt.Errorf("%w: %q has a shared bucket in one process only", stint.ErrNameMismatch, n.Label)
		case spec.Parent != n.Parent || spec.Floor != n.Floor:
			return fmt.Errorf("%w: %q has another Parent or Floor in another process", stint.ErrNameMismatch, n.Label)
		}
	}
	return nil
}

// AppendHello appends the hello of a guest, with the first part of its names.
func AppendHello(b []byte, names []Named, more bool) []byte {
	return AppendNames(append(append(b, magic...), version), names, more)
}

// Hello reads a hello. After another version the error is ErrRefused, and the
// rest was not read.
func (r *Body) Hello() (names []Named, more bool, err error) {
	for i := range len(magic) {
		if r.Byte() != magic[i] {
			return nil, false, fmt.Errorf("%w: not a hello", ErrMessage)
		}
	}
	if theirs := r.Byte(); !r.bad && theirs != version {
		return nil, false, fmt.Errorf("%w: the guest has version %d of the protocol, the owner %d",
			ErrRefused, theirs, version)
	}
	names, more = r.Names()
	if r.End() != nil {
		return nil, false, fmt.Errorf("%w: not a hello", ErrMessage)
	}
	return names, more, nil
}

// FileID identifies a file of one machine. It is zero if it is not known.
type FileID struct{ Device, Inode uint64 }

// Welcome is what an owner says of itself.
type Welcome struct {
	PID   int
	Began time.Time // by the clock of its Limiter
	Now   time.Time
	File  FileID
	Asked time.Duration // the guest's time in its ping; 0 if there was none
}

// AppendWelcome appends the owner's answer to a hello or a ping.
func AppendWelcome(b []byte, w Welcome) []byte {
	b = binary.AppendVarint(append(b, 0), int64(w.PID)) // no error
	b = appendTime(appendTime(b, w.Began), w.Now)
	b = binary.AppendUvarint(binary.AppendUvarint(b, w.File.Device), w.File.Inode)
	return binary.AppendVarint(b, int64(w.Asked))
}

// Welcome reads the answer to a hello or a ping. The error may be the owner's.
func (r *Body) Welcome() (w Welcome, err error) {
	if err := r.Error(); err != nil {
		return w, err
	}
	w.PID = int(r.Int())
	w.Began, w.Now = r.time(), r.time()
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

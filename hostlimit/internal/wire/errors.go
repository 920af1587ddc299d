package wire

import (
	"context"
	"errors"

	"github.com/stint-go/stint"
)

// The errors of package hostlimit. Their comments are there.
var (
	ErrNoAnswer = errors.New("hostlimit: no answer from the owner")
	ErrNoOwner  = errors.New("hostlimit: no owner")
	ErrRefused  = errors.New("hostlimit: refused")
	ErrZone     = errors.New("hostlimit: time zones differ")
)

// ErrNotDone is the answer to a call that was not carried out, because the owner
// closes.
var ErrNotDone = errors.New("hostlimit: the owner is closing")

// kinds are the errors that keep their identity on the way to a guest, in the
// order of their bits in the protocol.
var kinds = [...]error{
	ErrNotDone, stint.ErrClosed, stint.ErrUnknownName, stint.ErrInvalidID, stint.ErrNegativeCost,
	stint.ErrCostOverBurst, stint.ErrDuplicateKey, stint.ErrQueueFull, stint.ErrBlocked, errors.ErrUnsupported,
	stint.ErrNotDurable, stint.ErrFull, stint.ErrGone, stint.ErrCorrupt, stint.ErrFormat, stint.ErrLocked,
	stint.ErrNameMismatch, context.DeadlineExceeded, context.Canceled, ErrRefused, ErrNoOwner, ErrNoAnswer, ErrZone,
}

const kindConfig = 1 << len(kinds)

// maxErrorText is the largest number of bytes of an error's text. The errors of
// MaxRequests requests fit into a frame.
const maxErrorText = 900

// remoteError is an error of the owner.
type remoteError struct {
	text  string
	kinds []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.kinds }

// Error writes or reads an error, or nil. A malformed one is ErrMessage. The form
// stays, so that a guest of another version reads why it is refused.
func (b *Body) Error(err *error) {
	failed, bits, text := *err != nil, uint64(0), ""
	if b.writes && failed {
		text = (*err).Error()
		for i, kind := range kinds {
			if errors.Is(*err, kind) {
				bits |= 1 << i
			}
		}
		if config := (*stint.ConfigError)(nil); errors.As(*err, &config) {
			bits |= kindConfig
		}
		if len(text) > maxErrorText {
			text = text[:maxErrorText-3] + "..."
		}
	}
	if b.bools(&failed); failed {
		unsigned(b, &bits, 2*kindConfig-1)
		b.text(&text, maxErrorText)
	}
	if b.writes {
		return
	}
	if *err = nil; b.bad {
		*err = ErrMessage
	} else if failed {
		e := &remoteError{text: text}
		for i, kind := range kinds {
			if bits&(1<<i) != 0 {
				e.kinds = append(e.kinds, kind)
			}
		}
		if bits&kindConfig != 0 {
			e.kinds = append(e.kinds, &stint.ConfigError{Err: errors.New(text)})
		}
		*err = e
	}
}

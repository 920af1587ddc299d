package stint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/cache"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/spell"
)

// The errors of Open, OpenBolt, New and SetLimits.
var (
	// ErrLocked: another Limiter, of this process or another one, kept the file
	// for all of LockTimeout.
	ErrLocked = boltstore.ErrLocked

	// ErrCorrupt: the file does not contain what stint wrote.
	ErrCorrupt = fileformat.ErrCorrupt

	// ErrFormat: the file belongs to another program or to a newer version.
	ErrFormat = fileformat.ErrFormat

	// ErrNameMismatch: the file has another label for a number of the Names, or
	// another number for a label.
	ErrNameMismatch = boltstore.ErrNameMismatch
)

// ErrGone: the file was removed or renamed, or another one has its name. Flush
// returns it, and decisions return it with ErrNotDurable. The Limiter makes a
// removed file anew, with all buckets, within moments and in Close. Close returns
// ErrGone if it cannot.
var ErrGone = boltstore.ErrGone

// The errors of a decision. Unless the error is ErrNotDurable, nothing was
// spent.
//
// A call that a limit does not support returns errors.ErrUnsupported. A quota
// that follows the calendar has no queue, and Wait waits for its next period.
var (
	// ErrClosed: the Limiter is closed.
	ErrClosed = boltstore.ErrClosed

	// ErrUnknownName: the key's Name is not declared.
	ErrUnknownName = errors.New("stint: unknown name")

	// ErrInvalidID: the id is empty, longer than 512 bytes, or not of its
	// limit's format.
	ErrInvalidID = spell.ErrInvalidID

	// ErrNegativeCost: the cost is below 0.
	ErrNegativeCost = errors.New("stint: negative cost")

	// ErrCostOverBurst: the cost, and what the request must leave, are more than the
	// bucket can hold.
	ErrCostOverBurst = errors.New("stint: cost over burst")

	// ErrDuplicateKey: one call names the same bucket twice.
	ErrDuplicateKey = errors.New("stint: duplicate key")

	// ErrQueueFull: the queue is as long as the limit's Queue allows.
	ErrQueueFull = errors.New("stint: queue is full")

	// ErrBlocked: the limit of the id is Blocked, so its turn never comes.
	ErrBlocked = errors.New("stint: id is blocked")

	// ErrNotDurable: the store could not make the decision durable; the tokens
	// may stay spent.
	ErrNotDurable = cache.ErrNotDurable

	// ErrFull: memory holds MaxResident buckets, and none could be written to
	// the store to make space.
	ErrFull = cache.ErrFull
)

// ConfigError is a mistake in a limit or an override, with its place. NewLimits
// and package limitsfile return all of them at once, joined: errors.As finds
// the first.
type ConfigError struct {
	File  string // as it was passed; "" for limits in Go
	Line  int    // from 1; 0 if there is none
	Label string // of the limit; "" if there is none
	ID    string // of the override that is wrong; "" if it is the default
	Err   error
}

func (e *ConfigError) Error() string {
	place := "stint: "
	if e.File != "" && e.Line > 0 {
		place = fmt.Sprintf("%s:%d: ", e.File, e.Line)
	} else if e.File != "" {
		place = e.File + ": "
	}
	if e.Label != "" {
		place += spell.Line(e.Label) + ": "
	}
	return place + strings.TrimPrefix(e.Err.Error(), "stint: ")
}

func (e *ConfigError) Unwrap() error { return e.Err }

// unsupported says why a call is errors.ErrUnsupported.
type unsupported string

const (
	errCalendar unsupported = "stint: not for quotas that follow the calendar"
)

func (e unsupported) Error() string { return string(e) }

// Is makes it errors.ErrUnsupported.
func (e unsupported) Is(target error) bool { return target == errors.ErrUnsupported }

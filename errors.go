package stint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stint-go/stint/internal/boltstore"
	fileformat "github.com/stint-go/stint/internal/format"
)

// What Open, OpenBolt, New and SetLimits return.
var (
	// ErrLocked: another process, or another Limiter of this one, has the file, and
	// kept it for all of LockTimeout.
	ErrLocked = boltstore.ErrLocked

	// ErrCorrupt: the file does not hold what stint wrote. If bbolt panicked at it,
	// this process does not touch the file again.
	ErrCorrupt = fileformat.ErrCorrupt

	// ErrFormat: the file is of a newer version, or was never one of stint's.
	// Options.Recover leaves it alone.
	ErrFormat = fileformat.ErrFormat

	// ErrNameMismatch: the file knows a number, or a label, of the declared Names by
	// another meaning.
	ErrNameMismatch = boltstore.ErrNameMismatch
)

// What a decision returns. Nothing was spent, unless the error says otherwise.
var (
	// ErrClosed: the Limiter is closed.
	ErrClosed = boltstore.ErrClosed

	// ErrUnknownName: the key's Name is not declared.
	ErrUnknownName = errors.New("stint: unknown name")

	// ErrInvalidID: the id is not of its limit's format, is empty, or is longer than 512 bytes.
	ErrInvalidID = errors.New("stint: invalid id")

	// ErrNegativeCost: a cost is 0 or more.
	ErrNegativeCost = errors.New("stint: negative cost")

	// ErrCostOverBurst: the cost is more than the bucket can ever hold.
	ErrCostOverBurst = errors.New("stint: cost over burst")

	// ErrDuplicateKey: one call names the same bucket twice.
	ErrDuplicateKey = errors.New("stint: duplicate key")

	// ErrQueueFull: the line is as long as the limit's Queue allows.
	ErrQueueFull = errors.New("stint: queue is full")

	// ErrNotDurable: what the limit's Durability asks for could not be had from the store. Tokens that were asked for are
	// given back, but for those that somebody in line counts on, unless the error says that the commit may yet come.
	ErrNotDurable = errors.New("stint: not durable")

	// ErrFull: memory holds MaxResident buckets, and none of them could be written out to make room.
	ErrFull = errors.New("stint: too many buckets")
)

// ConfigError is a mistake in a limit or an override, and the place of it. LoadLimits, ParseLimits and NewLimits
// return all of them at once, joined; errors.As finds the first.
type ConfigError struct {
	File  string // as it was passed; "" where the limits came from memory
	Line  int    // from 1; 0 where there is none
	Label string // of the limit; "" where the mistake is not inside one
	Err   error
}

func (e *ConfigError) Error() string {
	place := "stint: "
	if e.File != "" {
		place = e.File + ":"
		if e.Line > 0 {
			place += fmt.Sprint(e.Line, ":")
		}
		place += " "
	} else if e.Line > 0 {
		place += fmt.Sprintf("line %d: ", e.Line)
	}
	if e.Label != "" {
		place += e.Label + ": "
	}
	return place + strings.TrimPrefix(e.Err.Error(), "stint: ")
}

func (e *ConfigError) Unwrap() error { return e.Err }

// joinErrors returns all of errs as one, nil where there are none.
func joinErrors(errs []*ConfigError) error {
	joined := make([]error, len(errs))
	for i, err := range errs {
		joined[i] = err
	}
	return errors.Join(joined...)
}

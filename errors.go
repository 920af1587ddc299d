package stint

import (
	"errors"

	"github.com/stint-go/stint/internal/boltstore"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/spell"
)

// The errors of Open, OpenBolt, New and SetLimits.
var (
	// ErrLocked: another Limiter, of this process or another one, kept the file for
	// all of LockTimeout.
	ErrLocked = boltstore.ErrLocked

	// ErrCorrupt: the file does not contain what stint wrote.
	ErrCorrupt = fileformat.ErrCorrupt

	// ErrFormat: the file belongs to another program or to a newer version.
	ErrFormat = fileformat.ErrFormat

	// ErrNameMismatch: the file has another meaning for a number or label of the Names.
	ErrNameMismatch = boltstore.ErrNameMismatch
)

// The errors of a decision. Unless the error is ErrNotDurable, nothing was spent.
var (
	// ErrClosed: the Limiter is closed.
	ErrClosed = boltstore.ErrClosed

	// ErrUnknownName: the key's Name is not declared.
	ErrUnknownName = errors.New("stint: unknown name")

	// ErrInvalidID: the id is empty, longer than 512 bytes, or not of its limit's format.
	ErrInvalidID = spell.ErrInvalidID

	// ErrNegativeCost: the cost is below 0.
	ErrNegativeCost = errors.New("stint: negative cost")

	// ErrCostOverBurst: the cost is more than the bucket can hold.
	ErrCostOverBurst = errors.New("stint: cost over burst")

	// ErrDuplicateKey: one call names the same bucket twice.
	ErrDuplicateKey = errors.New("stint: duplicate key")

	// ErrQueueFull: the queue is as long as the limit's Queue allows.
	ErrQueueFull = errors.New("stint: queue is full")

	// ErrNotDurable: the store could not make the decision durable; the tokens may
	// stay spent.
	ErrNotDurable = errors.New("stint: not durable")

	// ErrFull: memory holds MaxResident buckets, and none could be written to the
	// store to make room.
	ErrFull = errors.New("stint: too many buckets")
)

package format

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Number is the format that this version reads and writes.
const Number = 1

// MaxID is the length in bytes of the longest id.
const MaxID = 512

// Holds is the number that stands for the holds. No limit has it.
const Holds uint16 = 0

var (
	// ErrCorrupt: the file does not hold what stint wrote.
	ErrCorrupt = errors.New("stint: file is corrupt")

	// ErrFormat: this version does not read the format of the file.
	ErrFormat = errors.New("stint: unknown file format")

	// ErrClosed: what has the file open was closed.
	ErrClosed = errors.New("stint: limiter is closed")
)

// The buckets of the database, and the keys in MetaBucket.
var (
	MetaBucket    = []byte("meta")
	FormatKey     = []byte("format")
	NamesBucket   = []byte("names")
	HoldsBucket   = []byte("holds")
	JournalBucket = []byte("journal")
	SeenKey       = []byte("seen")  // of the time of the last save
	ClockKey      = []byte("clock") // of the record of the clock
	LogBucket     = []byte("log")
	LogKey        = []byte("log") // key of the log in LogBucket, and of its round in MetaBucket
)

// Entry is the state of one bucket. A TAT of 0 means that it is not stored. The
// entry of Holds with the empty id is no bucket: its TAT is the time of the save
// that it is part of.
type Entry struct {
	Name uint16
	ID   string
	TAT  int64
}

// String returns the bucket's key as text: "6:12345678".
func (e Entry) String() string { return strconv.Itoa(int(e.Name)) + ":" + e.ID }

// IsTime reports whether the entry is the time of a save.
func (e Entry) IsTime() bool { return e.Name == Holds && e.ID == "" }

// CompareStored orders entries as the database does: by number, then by key.
func (e Entry) CompareStored(f Entry) int {
	return cmp.Or(cmp.Compare(e.Name, f.Name), strings.Compare(storedID(e.ID), storedID(f.ID)))
}

// Damaged returns an ErrCorrupt about the file at path.
func Damaged(path, text string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrCorrupt, path, fmt.Errorf(text, args...))
}

// Foreign returns the ErrFormat of a bbolt file that stint did not write.
func Foreign(path string) error {
	return fmt.Errorf("%w: %s: a bbolt file, but not one of stint's", ErrFormat, path)
}

// OtherNumber returns the ErrFormat of a file with another format number.
func OtherNumber(path string, number uint64) error {
	return fmt.Errorf("%w: %s: format %d, and this version reads %d", ErrFormat, path, number, Number)
}

// Decimal returns the key that a limit's number has in the names table, which
// is also the name of its bucket.
func Decimal(name uint16) []byte { return strconv.AppendUint(nil, uint64(name), 10) }

// ParseDecimal is the inverse of Decimal.
func ParseDecimal(key []byte) (name uint16, ok bool) {
	n, err := strconv.ParseUint(string(key), 10, 16)
	return uint16(n), err == nil && n > 0
}

// BucketOf returns the name of the bucket that holds the entries of a limit, or
// the holds.
func BucketOf(name uint16) []byte {
	if name == Holds {
		return HoldsBucket
	}
	return Decimal(name)
}

// EncodeID returns the key of an id. bbolt has no empty key. So an id that is
// empty or has only stars gets one more star.
func EncodeID(id string) []byte { return []byte(storedID(id)) }

func storedID(id string) string {
	if OnlyStars(id) {
		return id + "*"
	}
	return id
}

// DecodeID is the inverse of EncodeID. An empty key, which only a damaged file
// has, is the empty id.
func DecodeID(key []byte) string {
	if len(key) > 0 && OnlyStars(string(key)) {
		key = key[1:]
	}
	return string(key)
}

// OnlyStars reports whether an id is empty or has only stars.
func OnlyStars(id string) bool { return strings.Count(id, "*") == len(id) }

// CheckID returns an error if stint never stores an entry with this number and
// id.
func CheckID(name uint16, id string) error {
	if name == Holds && id != "" {
		number, held, found := strings.Cut(id, ":")
		n, err := strconv.ParseUint(number, 10, 16)
		if !found || err != nil || n == 0 || number[0] == '0' {
			return fmt.Errorf("a hold on %q, which is not a key", id)
		}
		id = held
	}
	if len(id) > MaxID {
		return fmt.Errorf("an id of %d bytes, want at most %d", len(id), MaxID)
	}
	return nil
}

// BigEndian returns a number as 8 bytes.
func BigEndian(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// Uint64 is the inverse of BigEndian. The error is ErrCorrupt.
func Uint64(v []byte) (uint64, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: a value of %d bytes, want 8", ErrCorrupt, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

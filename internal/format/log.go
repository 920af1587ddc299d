package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
)

const (
	LogSize   = 1 << 20
	LogBlock  = 512       // a disk writes whole blocks, so no two saves share one
	LogHeader = 8 + 8 + 4 // the round, the sequence number, the length of the record

	// LogSkip is the number of bytes of the log's value that bbolt puts on the
	// first page, after its own header. The log does not use them.
	LogSkip = 4096 - 16 - 16 - 3
)

// Record is a record of the journal, in the log or in the tree.
type Record struct {
	Seq  uint64
	Data []byte
}

// Frame returns the entries as a record, and the frame of the log around it.
func Frame(round, seq uint64, entries []Entry) (frame, record []byte) {
	size := LogHeader + 4
	for _, e := range entries {
		size += EntrySize(e)
	}
	frame = append(make([]byte, 0, size+LogBlock), make([]byte, LogHeader+4)...)
	for _, e := range entries {
		frame = AppendEntry(frame, e)
	}
	record = frame[LogHeader:]
	Seal(seq, record)
	binary.BigEndian.PutUint64(frame, round)
	binary.BigEndian.PutUint64(frame[8:], seq)
	binary.BigEndian.PutUint32(frame[16:], uint32(len(record)))
	return append(frame, make([]byte, -len(frame)&(LogBlock-1))...), record
}

// readFrame returns the record at the start of b if it is of the round, and the
// length of its frame.
func readFrame(b []byte, round uint64) (r Record, size int, ok bool) {
	long := int64(binary.BigEndian.Uint32(b[16:]))
	if binary.BigEndian.Uint64(b) != round || long < 4 || long > int64(len(b)-LogHeader) {
		return r, 0, false
	}
	r = Record{binary.BigEndian.Uint64(b[8:]), b[LogHeader:][:long]}
	size = LogHeader + int(long)
	ok = binary.BigEndian.Uint32(r.Data) == recordSum(r.Seq, r.Data[4:])
	return r, size + -size&(LogBlock-1), ok
}

// ReadLog returns the records of a round, and the offset of the next one. It
// leaves out a last record that was cut short: its save was never acknowledged.
// If a record is missing before others, the error is ErrCorrupt.
func ReadLog(b []byte, round uint64) (records []Record, end int, err error) {
	for at := 0; at < len(b); {
		r, size, ok := readFrame(b[at:], round)
		if !ok {
			at += LogBlock
			continue
		}
		if at != end || len(records) > 0 && r.Seq <= records[len(records)-1].Seq {
			err = fmt.Errorf("%w: a record of the log is damaged: "+
				"number %d does not follow directly after the first %d records", ErrCorrupt, r.Seq, len(records))
		}
		at += size
		end = at
		records = append(records, r)
	}
	return records, end, err
}

// NextRound returns the round after the given one. The upper half is a counter,
// which orders the rounds. The lower half is random, so that no client can
// choose an id that looks like a record of the round.
func NextRound(round uint64) uint64 { return (round>>32+1)<<32 | uint64(rand.Uint32()) }

// ReadLaterRound returns the records of a round after the given one. It looks
// only at the start of the log: the bytes after it may be those of an id.
func ReadLaterRound(b []byte, round uint64) (records []Record) {
	later := binary.BigEndian.Uint64(b)
	if _, _, ok := readFrame(b, later); ok && int32(uint32(later>>32)-uint32(round>>32)) > 0 {
		records, _, _ = ReadLog(b, later)
	}
	return records
}

// ErrOldMeta: the log is newer than the meta pages, so the file is corrupt.
var ErrOldMeta = errors.New("the log is of a later transaction than the first pages, " +
	"one of which is damaged")

// RoundValue returns a round as it is stored in MetaBucket.
func RoundValue(round uint64) []byte { return ClockValue(BigEndian(round)) }

// ParseRound is the inverse of RoundValue. The error is ErrCorrupt.
func ParseRound(v []byte) (round uint64, err error) {
	if v, ok := unsealed(v); ok && len(v) == 8 {
		return binary.BigEndian.Uint64(v), nil
	}
	return 0, fmt.Errorf("%w: the round of its log is damaged", ErrCorrupt)
}

// SeenValue returns the time of a save as it is stored in MetaBucket.
func SeenValue(seen int64) []byte { return RoundValue(uint64(seen)) }

// ParseSeen is the inverse of SeenValue. The error is ErrCorrupt.
func ParseSeen(v []byte) (seen int64, err error) {
	n, err := ParseRound(v)
	if err != nil || int64(n) < 0 {
		return 0, fmt.Errorf("%w: the time of its last save is damaged", ErrCorrupt)
	}
	return int64(n), nil
}

// ClockValue returns a record of the clock as it is stored in MetaBucket: after
// its checksum.
func ClockValue(record []byte) []byte {
	v := append(make([]byte, 4), record...)
	Seal(0, v)
	return v
}

// ParseClock is the inverse of ClockValue. The error is ErrCorrupt.
func ParseClock(v []byte) (record []byte, err error) {
	record, ok := unsealed(v)
	if !ok {
		return nil, fmt.Errorf("%w: its record of the clock is damaged", ErrCorrupt)
	}
	return record, nil
}

// unsealed returns what follows the checksum of a value. ok is false if the value
// is damaged.
func unsealed(v []byte) (b []byte, ok bool) {
	if len(v) < 4 || binary.BigEndian.Uint32(v) != recordSum(0, v[4:]) {
		return nil, false
	}
	return v[4:], true
}

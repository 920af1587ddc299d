package format

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"
	"sync"
)

// RawEntry is an entry inside a record. It is valid as long as the record's
// bytes are.
type RawEntry struct {
	Name uint16
	ID   []byte
	TAT  int64
	Size int // of the entry, in bytes
}

// Entry returns a copy.
func (e RawEntry) Entry() Entry { return Entry{e.Name, string(e.ID), e.TAT} }

// Compare orders entries by number, then by the bytes of the id.
func (e RawEntry) Compare(f RawEntry) int {
	return cmp.Or(cmp.Compare(e.Name, f.Name), bytes.Compare(e.ID, f.ID))
}

// AppendEntry appends an entry to a record.
func AppendEntry(b []byte, e Entry) []byte {
	b = binary.AppendUvarint(b, uint64(e.Name))
	b = binary.AppendUvarint(b, uint64(len(e.ID)))
	b = append(b, e.ID...)
	return binary.BigEndian.AppendUint64(b, uint64(e.TAT))
}

// EntrySize returns the greatest length that an entry can have in a record.
func EntrySize(e Entry) int { return 3 + 2 + len(e.ID) + 8 }

// ReadEntry reads the entry at the start of b.
func ReadEntry(b []byte) (e RawEntry, ok bool) {
	name, n := binary.Uvarint(b)
	if n <= 0 || name > 1<<16-1 {
		return RawEntry{}, false
	}
	size, m := binary.Uvarint(b[n:])
	if m <= 0 || size > uint64(len(b)) || len(b)-n-m-8 < int(size) {
		return RawEntry{}, false
	}
	id := b[n+m:][:size]
	tat := int64(binary.BigEndian.Uint64(b[n+m+int(size):]))
	return RawEntry{uint16(name), id, tat, n + m + int(size) + 8}, true
}

// Seal writes the checksum of a record into its first four bytes.
func Seal(seq uint64, record []byte) {
	binary.BigEndian.PutUint32(record, recordSum(seq, record[4:]))
}

// recordSum returns the checksum of a record's sequence number and entries.
func recordSum(seq uint64, entries []byte) uint32 {
	table := plainTable()
	if len(entries) > 64 {
		table = crc32.MakeTable(crc32.Castagnoli) // fast once made
	}
	return crc32.Update(crc32.Checksum(BigEndian(seq), table), table, entries)
}

// plainTable returns the table of CRC-32C for a byte at a time. It is made in a few
// microseconds, and those of crc32.MakeTable in 120, which a command that reads only a
// clock would notice.
var plainTable = sync.OnceValue(func() *crc32.Table {
	table := new(crc32.Table)
	for i := range table {
		sum := uint32(i)
		for range 8 {
			sum = sum>>1 ^ crc32.Castagnoli&-(sum&1)
		}
		table[i] = sum
	}
	return table
})

// Entries yields the entries of a record. If the checksum is wrong, or the
// bytes are not a list of entries, it yields only an ErrCorrupt.
func Entries(seq uint64, record []byte) iter.Seq2[RawEntry, error] {
	return func(yield func(RawEntry, error) bool) {
		if len(record) < 4 || binary.BigEndian.Uint32(record) != recordSum(seq, record[4:]) {
			yield(RawEntry{}, fmt.Errorf("%w: journal record %d: its checksum is wrong", ErrCorrupt, seq))
			return
		}
		for b := record[4:]; len(b) > 0; {
			e, ok := ReadEntry(b)
			if !ok {
				yield(RawEntry{}, fmt.Errorf("%w: journal record %d: not a list of entries", ErrCorrupt, seq))
				return
			}
			b = b[e.Size:]
		}
		for b := record[4:]; len(b) > 0; {
			e, _ := ReadEntry(b)
			if !yield(e, nil) {
				return
			}
			b = b[e.Size:]
		}
	}
}

// Records yields entries as records of about size bytes. The caller seals them.
func Records(entries []Entry, size int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for buffer := []byte(nil); len(entries) > 0; {
			if cap(buffer)-len(buffer) < size { // bbolt keeps the records until the transaction ends
				buffer = make([]byte, 0, max(size+size/8, min(48*len(entries), 16<<10)))
			}
			record := AppendEntry(append(buffer, 0, 0, 0, 0), entries[0])
			entries = entries[1:]
			for len(entries) > 0 && len(record)+EntrySize(entries[0]) <= size {
				record = AppendEntry(record, entries[0])
				entries = entries[1:]
			}
			if !yield(record[:len(record):len(record)]) {
				return
			}
			buffer = record[len(record):]
		}
	}
}

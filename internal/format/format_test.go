package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestID(t *testing.T) {
	for id, key := range map[string]string{"": "*", "*": "**", "**": "***", "*a": "*a", "12345678": "12345678",
		"a*": "a*"} {
		require.Equal(t, key, string(EncodeID(id)))
		require.Equal(t, id, DecodeID([]byte(key)))
		require.Equal(t, "", DecodeID(nil))
	}
	require.Positive(t, Entry{1, "**", 0}.CompareStored(Entry{1, "*!", 0}), "as the database has them")
	long := strings.Repeat("x", MaxID)
	for _, c := range []struct {
		name uint16
		id   string
		ok   bool
	}{
		{1, "", true}, {1, long, true}, {1, long + "x", false},
		{Holds, "6:a", true}, {Holds, "6:", true}, {Holds, "6:" + long, true}, {Holds, "6:" + long + "x", false},
		{Holds, "a", false}, {Holds, ":a", false}, {Holds, "06:a", false}, {Holds, "0:a", false},
		{Holds, "65536:a", false}, {Holds, "+6:a", false},
	} {
		require.Equal(t, c.ok, CheckID(c.name, c.id) == nil, "%d:%s", c.name, c.id)
	}
	for key, want := range map[string]uint16{"1": 1, "65535": 65535, "0": 0, "65536": 0, "x": 0, "": 0, "-1": 0} {
		name, ok := ParseDecimal([]byte(key))
		require.Equal(t, want > 0, ok, key)
		require.True(t, !ok || name == want)
	}
	require.Equal(t, "holds", string(BucketOf(Holds)))
	require.Equal(t, "6", string(BucketOf(6)))
	_, err := Uint64(make([]byte, 7))
	require.ErrorIs(t, err, ErrCorrupt)
}

func sealed(seq uint64, entries ...Entry) []byte {
	for record := range Records(entries, 1<<20) {
		Seal(seq, record)
		return record
	}
	return nil
}

func read(t *testing.T, seq uint64, record []byte) (got []Entry) {
	t.Helper()
	for e, err := range Entries(seq, record) {
		require.NoError(t, err)
		got = append(got, e.Entry())
	}
	return got
}

func TestRecord(t *testing.T) {
	entries := []Entry{
		{1, "a", 1}, {1, "", math.MaxInt64}, {65535, strings.Repeat("x", MaxID), 0}, {Holds, "1:held", 5},
		{1, "\x00\xff", math.MinInt64}, {127, "n", -1}, {128, strings.Repeat("y", 128), 1 << 40},
	}
	require.Equal(t, entries, read(t, 7, sealed(7, entries...)))

	// docs/format.md has these bytes.
	require.Equal(t, "\x0D\xF0\x2B\xA8\x06\x0812345678"+
		"\x18\x86\x72\x5F\xE6\x41\x58\x00\x01\x0810.0.0.2\x00\x00\x00\x00\x00\x00\x00\x00",
		string(sealed(1, Entry{6, "12345678", 1767225660000000000}, Entry{1, "10.0.0.2", 0})))

	const size = 32<<10 - 32
	var many, got []Entry
	for i := range 5_000 {
		many = append(many, Entry{1, fmt.Sprint("client-", i), int64(i)})
	}
	n := uint64(0)
	for record := range Records(many, size) {
		n++
		require.LessOrEqual(t, len(record), size+MaxID+16)
		Seal(n, record)
		got = append(got, read(t, n, record)...)
	}
	require.Greater(t, n, uint64(2))
	require.Equal(t, many, got)
}

// Short and long records have the same checksum, CRC-32C of the number and the entries.
func TestRecordSum(t *testing.T) {
	entries := make([]byte, 300)
	for i := range entries {
		entries[i] = byte(i * i)
	}
	for size := range len(entries) {
		whole := append(BigEndian(7), entries[:size]...)
		want := crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli))
		require.Equal(t, want, recordSum(7, entries[:size]), "%d bytes", size)
	}
}

// A record with a flipped bit, in itself or in its number, yields no entry.
func TestRecordFlippedBits(t *testing.T) {
	const seq = 1<<40 + 9
	record := sealed(seq, Entry{1, "first", 12345}, Entry{300, "second", 0})
	corrupt := func(seq uint64, record []byte) {
		n := 0
		for e, err := range Entries(seq, record) {
			require.ErrorIs(t, err, ErrCorrupt)
			require.Zero(t, e)
			n++
		}
		require.Equal(t, 1, n)
	}
	for bit := range 8 * len(record) {
		flipped := slices.Clone(record)
		flipped[bit/8] ^= 1 << (bit % 8)
		corrupt(seq, flipped)
	}
	for bit := range 64 {
		corrupt(seq^1<<bit, record)
	}
	for n := range record {
		corrupt(seq, record[:n])
	}
	corrupt(seq, append(slices.Clone(record), 0))
}

func FuzzRecord(f *testing.F) {
	f.Add(uint64(1), sealed(1, Entry{1, "a", 1}, Entry{2, "bcd", 2}))
	f.Add(uint64(2), []byte{})
	f.Add(uint64(3), []byte{0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1})
	f.Add(uint64(4), bytes.Repeat([]byte{0}, 40))
	f.Add(uint64(5), []byte{0, 0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 1})
	f.Fuzz(func(t *testing.T, seq uint64, record []byte) {
		size := func() (n int, err error) {
			for e, err := range Entries(seq, record) {
				if err != nil {
					require.Zero(t, n, "half of a record was read")
					return 0, err
				}
				n += e.Size
			}
			return n + 4, nil
		}
		if _, err := size(); err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
		}
		if len(record) < 4 {
			return
		}
		Seal(seq, record) // a record with a right checksum
		if n, err := size(); err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
		} else {
			require.Equal(t, len(record), n)
		}
	})
}

// The last record of a log may be cut short anywhere: ReadLog leaves it out. A
// changed byte in an earlier record is ErrCorrupt, and the other records are
// read.
func TestLog(t *testing.T) {
	const round = 7<<32 | 1
	log := bytes.Repeat([]byte{0xA5}, 8*LogBlock) // bytes of earlier rounds
	var frames, records [3][]byte
	end := 0
	for i, id := range []string{"a", strings.Repeat("b", LogBlock), "c"} {
		frames[i], records[i] = Frame(round, uint64(i+1), []Entry{{1, id, 1<<60 + 1}})
		end += copy(log[end:], frames[i])
	}
	last := end - len(frames[2])
	for n := range LogHeader + len(records[2]) + 1 {
		for _, before := range []byte{0, 0xA5} {
			cut := append(bytes.Clone(log[:last+n]), bytes.Repeat([]byte{before}, 4*LogBlock-n)...)
			got, at, err := ReadLog(cut, round)
			require.NoError(t, err)
			if n < LogHeader+len(records[2]) {
				require.Len(t, got, 2)
				require.Equal(t, last, at)
			} else {
				require.Len(t, got, 3)
				require.Equal(t, end, at)
			}
		}
	}
	for at := range last {
		flipped := bytes.Clone(log)
		flipped[at] ^= 1
		got, _, err := ReadLog(flipped, round)
		begin, long := 0, len(records[0])
		if at >= len(frames[0]) {
			begin, long = len(frames[0]), len(records[1])
		}
		padding := at-begin >= LogHeader+long
		require.Equal(t, !padding, errors.Is(err, ErrCorrupt), "byte %d", at)
		require.Equal(t, padding, len(got) == 3)
		require.Equal(t, records[2], got[len(got)-1].Data)
	}
}

// ReadLog does not take the bytes of an id for a record.
func TestLogForgedRecord(t *testing.T) {
	fake, _ := Frame(12345, 3, []Entry{{1, "forged", 1}}) // a client chooses the id, and does not know the round
	id := string(fake[:50])
	pad := strings.Repeat("x", LogBlock-LogHeader-4-(1+1+8)-(1+2)) // so that a block begins with the id
	round := rand.Uint64()
	frame, _ := Frame(round, 1, []Entry{{1, pad, 1}, {1, id, 1}})
	require.Zero(t, bytes.Index(frame, fake[:50])%LogBlock)
	b := make([]byte, LogSize)
	copy(b, frame[LogBlock:])
	records, end, err := ReadLog(b, round)
	require.NoError(t, err)
	require.Empty(t, records)
	require.Zero(t, end)
	records, _, _ = ReadLog(b, 12345)
	require.Len(t, records, 1, "a record, except for the round")
}

// ReadLaterRound finds the next round at the start of the log, and nowhere else.
func TestLaterRound(t *testing.T) {
	for _, round := range []uint64{0, 1, 1<<32 - 1, 1 << 32, 1<<64 - 1, rand.Uint64()} {
		logs := make([][]byte, 4) // of this round and the next three
		for i := range logs {
			later := round
			for range i {
				later = NextRound(later)
			}
			frame, _ := Frame(later, 5, []Entry{{1, "a", 1}})
			logs[i] = append(frame, make([]byte, LogSize-len(frame))...)
			require.Equal(t, i > 0, len(ReadLaterRound(logs[i], round)) == 1, "%d: %d rounds on", round, i)
			require.Empty(t, ReadLaterRound(logs[i], later))
		}
		require.Empty(t, ReadLaterRound(append(make([]byte, LogBlock), logs[1]...), round))
		logs[1][30] ^= 1
		require.Empty(t, ReadLaterRound(logs[1], round))
		require.Empty(t, ReadLaterRound(make([]byte, LogSize), round))
		got, err := ParseRound(RoundValue(round))
		require.NoError(t, err)
		require.Equal(t, round, got)
	}
	v := RoundValue(1)
	v[5] ^= 1
	_, err := ParseRound(v)
	require.ErrorIs(t, err, ErrCorrupt)
}

// docs/format.md has this sum: other programs compute it.
func TestEntrySum(t *testing.T) {
	value := binary.BigEndian.AppendUint64(nil, 1_767_225_660_000_000_000)
	sum := EntrySum([]byte("6"), []byte("12345678"), value)
	require.Equal(t, uint64(0x61F7861D617F6F47), sum)
	require.Equal(t, uint64(0x002EFFD6E0C9EB5C), SumStart+sum)
	for bit := range 64 {
		value[bit/8] ^= 1 << (bit % 8)
		require.NotEqual(t, sum, EntrySum([]byte("6"), []byte("12345678"), value))
		value[bit/8] ^= 1 << (bit % 8)
	}
}

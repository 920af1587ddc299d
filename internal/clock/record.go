package clock

import (
	"encoding/binary"
	"errors"
)

// Record is what a file has about the clock besides the time of the last save.
// With it, many processes of one boot have one clock, even if each lives for
// milliseconds and saves nothing. It changes when the machine boots, and when
// the wall clock is set.
//
// Machine time is the time since the boot, in nanoseconds. If the system does
// not tell its boots apart, it is the time of the wall clock.
type Record struct {
	Boot   string // id of the boot; "" if it is not known
	Start  int64  // the Clock's time when machine time was 0
	Behind int64  // machine time since which a wall clock after the release has been behind; 0 if it is not
	Waited int64  // how long it was behind before that
	Moving int64  // time of the last save before holds and buckets were moved back; 0 if they need not be
}

// wallBoot is the Boot of a machine that does not tell its boots apart.
const wallBoot = "wall"

// kernel reports whether the Boot is one of many.
func (r *Record) kernel() bool { return r.Boot != "" && r.Boot != wallBoot }

// waitedAt returns how long the wall clock has been behind.
func (r *Record) waitedAt(machine int64) int64 {
	if r.Behind == 0 {
		return r.Waited
	}
	return r.Waited + max(0, machine-r.Behind)
}

// waited returns how long the wall clock was behind until the last save.
func (r *Record) waited(seen int64) int64 { return r.waitedAt(seen - r.Start) }

// notePatience begins or ends the time for which a wall clock is behind that may
// be right.
func (r *Record) notePatience(behind bool, machine int64) {
	switch {
	case behind && r.Behind == 0:
		r.Behind = machine
	case !behind:
		r.Waited, r.Behind = r.waitedAt(machine), 0
	}
}

// maxBoot is the longest Boot.
const maxBoot = 64

var errRecord = errors.New("not a record of the clock")

// Marshal returns the record as bytes, which docs/format.md describes.
func (r Record) Marshal() []byte {
	var b []byte
	for _, n := range [...]int64{r.Start, r.Behind, r.Waited, r.Moving} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return append(b, r.Boot...)
}

// Unmarshal is the inverse of Marshal. Of no bytes it returns the zero Record.
func Unmarshal(b []byte) (r Record, err error) {
	if len(b) == 0 {
		return r, nil
	}
	if len(b) < 32 || len(b) > 32+maxBoot {
		return r, errRecord
	}
	for i, n := range [...]*int64{&r.Start, &r.Behind, &r.Waited, &r.Moving} {
		*n = int64(binary.BigEndian.Uint64(b[8*i:]))
	}
	r.Boot = string(b[32:])
	return r, nil
}

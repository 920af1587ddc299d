package redislimit

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/stint-go/stint"
)

// keyOf returns the key of a bucket. Different buckets have different keys,
// whatever bytes their ids have, because the number of the limit is after the
// last colon. With a Tag the number is between the first closing brace and the
// id.
func (o *Options) keyOf(k stint.Key) string {
	switch {
	case o.Plain:
		return k.String()
	case o.Tag == nil:
		return o.Prefix + ":{" + k.ID + "}:" + strconv.Itoa(int(k.Name))
	}
	tag := o.Tag(k.ID)
	if tag == "" || strings.Contains(tag, "}") {
		tag = "x" + hex.EncodeToString([]byte(tag))
	}
	return o.Prefix + ":{" + tag + "}:" + k.String()
}

// slotOf returns the slot of a key in a cluster. It is a checksum of the bytes
// between the first opening brace and the next closing one. If there are no
// such bytes, it is the checksum of the whole key.
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if n := strings.IndexByte(key[open+1:], '}'); n > 0 {
			key = key[open+1 : open+1+n]
		}
	}
	return crc16(key) % 16384
}

// crc16 is the checksum of XMODEM.
func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

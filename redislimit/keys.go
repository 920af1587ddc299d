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
// id. Without one, an id that begins with a closing brace is in hexadecimal, after
// a further colon: empty braces choose no slot.
func (o *Options) keyOf(k stint.Key) string {
	switch {
	case o.PlainKeys:
		return k.String()
	case o.Tag == nil && strings.HasPrefix(k.ID, "}"):
		return o.Prefix + "::{" + hex.EncodeToString([]byte(k.ID)) + "}:" + strconv.Itoa(int(k.Name))
	case o.Tag == nil:
		return o.Prefix + ":{" + k.ID + "}:" + strconv.Itoa(int(k.Name))
	}
	tag := o.Tag(k.ID)
	if tag == "" || strings.Contains(tag, "}") {
		tag = "x" + hex.EncodeToString([]byte(tag))
	}
	return o.Prefix + ":{" + tag + "}:" + k.String()
}

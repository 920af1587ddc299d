package spell

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseKey returns the number and the id of a bucket key that is written
// "6:12345678". The id is all that follows the first colon.
func ParseKey(s string) (number uint16, id string, err error) {
	text, id, found := strings.Cut(s, ":")
	n, err := strconv.ParseUint(text, 10, 16)
	switch {
	case !found || err != nil || text[0] == '0':
		return 0, "", fmt.Errorf("%w: %s is not a key: want a number from 1 to 65535, a colon and the id",
			ErrInvalidID, Quote(s))
	case len(id) > MaxID:
		return 0, "", fmt.Errorf("%w: key %s: %w", ErrInvalidID, Quote(s), CheckLen(id))
	}
	return uint16(n), id, nil
}

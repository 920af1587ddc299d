package httplimit

import (
	"encoding/base64"
	"strconv"
)

// appendString appends a String of RFC 9651. Bytes that are not printable
// ASCII are percent-encoded, and so is the percent sign.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~' || c == '%':
			b = append(b, '%', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// appendInt appends an Integer of RFC 9651, which has at most 15 digits.
func appendInt(b []byte, n int64) []byte {
	const most = 999_999_999_999_999
	return strconv.AppendInt(b, max(0, min(n, most)), 10)
}

// appendBytes appends a Byte Sequence of RFC 9651.
func appendBytes(b, value []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, ':'), value), ':')
}

package resp

import (
	"strconv"
	"strings"
)

// Writer collects replies. The zero Writer writes RESP2.
type Writer struct {
	Buf   []byte // the replies
	RESP3 bool   // maps, doubles and nulls as such; in RESP2 they are arrays and strings
}

func (w *Writer) line(kind byte, n int64) {
	w.Buf = append(w.Buf, kind)
	w.Buf = strconv.AppendInt(w.Buf, n, 10)
	w.Buf = append(w.Buf, '\r', '\n')
}

// Int writes a number.
func (w *Writer) Int(n int64) { w.line(':', n) }

// Double writes a number that need not be whole.
func (w *Writer) Double(f float64) {
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !w.RESP3 {
		w.Bulk(text)
		return
	}
	w.Buf = append(append(append(w.Buf, ','), text...), '\r', '\n')
}

// Array begins an array of n replies, which follow.
func (w *Writer) Array(n int) { w.line('*', int64(n)) }

// Map begins a map of n keys, each with a value, which follow.
func (w *Writer) Map(n int) {
	if w.RESP3 {
		w.line('%', int64(n))
	} else {
		w.Array(2 * n)
	}
}

// Bulk writes strings of any bytes.
func (w *Writer) Bulk(strings ...string) {
	for _, s := range strings {
		w.line('$', int64(len(s)))
		w.Buf = append(append(w.Buf, s...), '\r', '\n')
	}
}

// Simple writes a short string without line breaks.
func (w *Writer) Simple(s string) {
	w.Buf = append(append(append(w.Buf, '+'), s...), '\r', '\n')
}

// Error writes an error. It begins with a word in capitals, such as ERR.
func (w *Writer) Error(text string) {
	w.Buf = append(append(append(w.Buf, '-'), oneLine.Replace(text)...), '\r', '\n')
}

var oneLine = strings.NewReplacer("\r\n", " ", "\r", " ", "\n", " ")

// Null writes that there is no value.
func (w *Writer) Null() {
	if w.RESP3 {
		w.Buf = append(w.Buf, "_\r\n"...)
	} else {
		w.Buf = append(w.Buf, "$-1\r\n"...)
	}
}

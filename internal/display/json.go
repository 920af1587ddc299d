package display

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/stint-go/stint"
)

// WriteJSON writes v in one line, and escapes no HTML.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// JSONID is an id in JSON. JSON is UTF-8, and would replace other bytes, so
// that two ids could become one.
type JSONID struct {
	ID     string `json:"id"`
	Base64 bool   `json:"base64,omitempty"` // because the id is not UTF-8
}

// NewJSONID returns an id, in base64 if it is not UTF-8.
func NewJSONID(id string) JSONID {
	if utf8.ValidString(id) {
		return JSONID{ID: id}
	}
	return JSONID{base64.StdEncoding.EncodeToString([]byte(id)), true}
}

// JSONLimit is a limit in JSON. The period is as in "1m0s".
type JSONLimit struct {
	Burst  int64  `json:"burst"`
	Count  int64  `json:"count"`
	Period string `json:"period"`
	Resets string `json:"resets,omitempty"` // of a quota that follows the calendar, as in "month@Europe/Berlin"
}

// NewJSONLimit returns nil, which is null, if there is no limit.
func NewJSONLimit(l stint.Limit) *JSONLimit {
	if l.Burst == 0 {
		return nil
	}
	of := &JSONLimit{Burst: l.Burst, Count: l.Count, Period: l.Period.String()}
	if l.FollowsCalendar() {
		_, of.Resets, _ = strings.Cut(l.String(), "/")
	}
	return of
}

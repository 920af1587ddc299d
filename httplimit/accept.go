package httplimit

import (
	"strconv"
	"strings"
)

// preferred returns what an Accept field prefers: "text/html", "text/plain", or
// "" for JSON. JSON is also the answer to clients without a preference.
func preferred(accept []string) string {
	if len(accept) == 0 {
		return ""
	}
	best, text := 0.0, ""
	for entry := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, _ := strings.Cut(entry, ";")
		kind = strings.ToLower(strings.TrimSpace(kind))
		switch kind {
		case "application/problem+json", "application/json", "application/*", "*/*", "text/html", "text/plain":
		case "text/*":
			kind = "text/plain"
		default:
			continue
		}
		q := quality(params)
		isText := strings.HasPrefix(kind, "text/")
		if q > best || q == best && q > 0 && !isText && kind != "*/*" {
			best, text = q, ""
			if isText {
				text = kind
			}
		}
	}
	return text
}

// quality returns the weight of an entry of an Accept field, 0 to 1, from its
// parameters.
func quality(params string) float64 {
	for _, param := range strings.Split(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if strings.EqualFold(name, "q") {
			q, err := strconv.ParseFloat(value, 64)
			if err != nil || !(q >= 0 && q <= 1) {
				return 0
			}
			return q
		}
	}
	return 1
}

package chart

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAxes(t *testing.T) {
	for most, want := range map[float64]axis{1: {1, 1}, 2: {1, 2}, 7: {2, 8}, 10: {2, 10}, 200: {50, 200},
		600: {100, 600}, 999: {200, 1000}, 1e6: {200000, 1e6}, 1234: {250, 1250}} {
		assert.Equal(t, want, niceTop(most), most)
	}
	for span := int64(0); span < int64(40*365*24*time.Hour); span = span*3/2 + 1 {
		marks, step := timeMarks(5e9, 5e9+span)
		assert.LessOrEqual(t, len(marks), 8, span)
		assert.GreaterOrEqual(t, len(marks), min(3, int(span)+1), "%v: %v", time.Duration(span), step)
	}
}

// A name with any character makes a picture that is XML.
func TestEscaped(t *testing.T) {
	assert.Equal(t, `&lt;a&gt; &amp; &#34;b&#34;\x01\n`, escaped("<a> & \"b\"\x01\n"))
}

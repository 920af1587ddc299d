package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stint-go/stint/internal/display"
)

func TestSummary(t *testing.T) {
	r := &Replay{byID: map[string]*tally{}, byMinute: map[int64]*counts{}, columns: make([]counts, 1), reader: &reader{}}
	for i := range 20 {
		r.byID[fmt.Sprintf("id%02d", i)] = &tally{columns: []counts{{allowed: 1, denied: int64(i / 2)}}}
	}
	s := r.Summary(0)
	assert.Len(t, s.TopDenied, 10)
	assert.Len(t, r.Summary(12).TopDenied, 12)
	for i, id := range []string{"id18", "id19", "id16"} {
		assert.Equal(t, idSummary{display.JSONID{ID: id}, 1, int64(9 - i/2), id}, s.TopDenied[i])
	}

	for minute := range int64(50) {
		r.byMinute[minute] = &counts{allowed: minute / 40}
	}
	first := &minuteSummary{time.Unix(40*60, 0).UTC(), 1, new(int64)}
	assert.Equal(t, first, r.Summary(0).BusiestMinute)
}

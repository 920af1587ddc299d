package display

import (
	"strings"
	"text/tabwriter"
)

// Table is rows of cells below a header. In a terminal that is too narrow, each
// row takes several lines instead.
type Table struct {
	Header []string
	Rows   [][]string
}

// Text returns the table for a terminal of that width. A width of 0 means no bound.
func (t *Table) Text(width int) string {
	text, tooWide := Columns(append([][]string{t.Header}, t.Rows...)), false
	for line := range strings.Lines(text) {
		tooWide = tooWide || Wide(line)-1 > width
	}
	if width == 0 || !tooWide {
		return text
	}
	var rows [][]string
	for _, row := range t.Rows {
		rows = append(rows, row[:1])
		for i, cell := range row[1:] {
			if cell != "" {
				rows = append(rows, []string{"  " + t.Header[1+i], cell})
			}
		}
	}
	return Columns(rows)
}

// Columns returns rows of cells below each other.
func Columns(rows [][]string) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = tw.Write([]byte(strings.Join(row, "\t") + "\n"))
	}
	_ = tw.Flush() // a Builder does not fail
	return b.String()
}

package display

import (
	"io"
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
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		_, _ = io.WriteString(tw, strings.Join(row, "\t")+"\n")
	}
	_ = tw.Flush() // a Builder does not fail
	tooWide := false
	for line := range strings.Lines(b.String()) {
		tooWide = tooWide || Wide(line)-1 > width
	}
	if width == 0 || !tooWide {
		return b.String()
	}
	b.Reset()
	tw = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t.Rows {
		for i, cell := range row {
			switch {
			case i == 0:
				_, _ = io.WriteString(tw, cell+"\n")
			case cell != "":
				_, _ = io.WriteString(tw, "  "+t.Header[i]+"\t"+cell+"\n")
			}
		}
	}
	_ = tw.Flush()
	return b.String()
}

package main

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// columns returns the width of the terminal w, or 0 if w is not a terminal.
func columns(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// folding returns a writer that breaks long lines at spaces if w is a terminal.
// The terminal itself would break them inside words and numbers.
func folding(w io.Writer) io.Writer {
	if width := columns(w); width > 0 {
		return &foldWriter{w: w, width: width}
	}
	return w
}

// foldWriter writes lines when they are complete.
type foldWriter struct {
	w     io.Writer
	width int
	begun []byte
}

func (f *foldWriter) Write(b []byte) (int, error) {
	f.begun = append(f.begun, b...)
	whole := bytes.LastIndexByte(f.begun, '\n') + 1
	_, err := io.WriteString(f.w, folded(string(f.begun[:whole]), f.width))
	f.begun = f.begun[whole:]
	return len(b), err
}

// folded breaks lines that are longer than width at spaces. A word that is
// longer stays whole.
func folded(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, end := strings.CutSuffix(line, "\n")
		for _, part := range foldLine([]rune(line), width) {
			b.WriteString(part + "\n")
		}
		if !end {
			return strings.TrimSuffix(b.String(), "\n")
		}
	}
	return b.String()
}

// foldLine returns the parts of a line that is broken at spaces. Later parts
// are indented as far as the text after the line's last two spaces, if that text
// begins in the left half.
func foldLine(line []rune, width int) (parts []string) {
	indent := 0
	for indent < len(line) && line[indent] == ' ' {
		indent++
	}
	hang := indent
	for i := len(line) - 1; i > indent+1; i-- {
		if line[i-1] == ' ' && line[i-2] == ' ' && line[i] != ' ' {
			if hang = i; hang > width/2 {
				hang = indent + 4
			}
			break
		}
	}
	for len(line) > width {
		cut := -1
		for i := indent + 1; i < len(line) && (i <= width || cut < 0); i++ {
			if line[i] == ' ' {
				cut = i
			}
		}
		if cut < 0 {
			break
		}
		parts = append(parts, strings.TrimRight(string(line[:cut]), " "))
		rest := strings.TrimLeft(string(line[cut:]), " ")
		line, indent = []rune(strings.Repeat(" ", hang)+rest), hang
	}
	return append(parts, strings.TrimRight(string(line), " "))
}

// reflowed wraps a paragraph again if one of its lines is longer than width,
// and folds indented lines.
func reflowed(text string, width int) string {
	var b strings.Builder
	var paragraph []string
	flush := func() {
		if long := slices.ContainsFunc(paragraph, func(l string) bool { return wide(l) > width }); long {
			paragraph = []string{strings.Join(paragraph, " ")}
		}
		for _, line := range paragraph {
			b.WriteString(folded(line+"\n", width))
		}
		paragraph = nil
	}
	for line := range strings.Lines(text + "\n") {
		if line = strings.TrimSuffix(line, "\n"); line == "" || line[0] == ' ' {
			flush()
			b.WriteString(folded(line+"\n", width))
		} else {
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// foldedCommands breaks shell commands between their words, with a backslash,
// so that they can still be run. The comment of a command that is too long goes
// above it. A word in quotes stays whole.
func foldedCommands(text string, width int) string {
	const quoted = '\uE000' // a space inside quotes
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if wide(line) <= width {
			continue
		}
		line, comment, _ := strings.Cut(line, " # ")
		if comment != "" {
			comment = "  # " + strings.ReplaceAll(folded(comment, width-len("  # ")), "\n", "\n  # ") + "\n"
		}
		quote, runes := rune(0), []rune(strings.TrimRight(line, " "))
		for j, r := range runes {
			switch {
			case quote == 0 && (r == '\'' || r == '"'):
				quote = r
			case r == quote:
				quote = 0
			case quote != 0 && r == ' ':
				runes[j] = quoted
			}
		}
		if len(runes) > width {
			runes = []rune(strings.Join(foldLine(runes, width-len(`   \`)), " \\\n  "))
		}
		lines[i] = comment + strings.ReplaceAll(string(runes), string(quoted), " ")
	}
	return strings.Join(lines, "\n")
}

// wide returns the columns that a text takes.
func wide(text string) int { return utf8.RuneCountInString(text) }

// table is rows of cells below a header. In a terminal that is too narrow, each
// row takes several lines instead.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) text(width int) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		_, _ = io.WriteString(tw, strings.Join(row, "\t")+"\n")
	}
	_ = tw.Flush() // a Builder does not fail
	tooWide := false
	for line := range strings.Lines(b.String()) {
		tooWide = tooWide || wide(line)-1 > width
	}
	if width == 0 || !tooWide {
		return b.String()
	}
	b.Reset()
	tw = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		for i, cell := range row {
			switch {
			case i == 0:
				_, _ = io.WriteString(tw, cell+"\n")
			case cell != "":
				_, _ = io.WriteString(tw, "  "+t.header[i]+"\t"+cell+"\n")
			}
		}
	}
	_ = tw.Flush()
	return b.String()
}

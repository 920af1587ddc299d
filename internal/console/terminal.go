package console

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/stint-go/stint/internal/display"
)

// Columns returns the width of the terminal w, or 0 if w is not a terminal.
func Columns(w io.Writer) int {
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

// Folded breaks the long lines of a text at spaces if w is a terminal, which would
// break them inside words and numbers.
func Folded(w io.Writer, text string) string {
	if width := Columns(w); width > 0 {
		return display.Folded(text, width)
	}
	return text
}

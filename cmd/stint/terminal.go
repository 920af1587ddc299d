package main

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/stint-go/stint/internal/display"
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
	_, err := io.WriteString(f.w, display.Folded(string(f.begun[:whole]), f.width))
	f.begun = f.begun[whole:]
	return len(b), err
}

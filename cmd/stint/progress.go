package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar for work that may take long.
type progress struct{ bar *progressbar.ProgressBar }

// newProgress returns a bar on stderr for total steps or bytes. A total of -1
// means that it is not known. Unless stderr is a terminal, the bar is not shown.
func newProgress(stderr io.Writer, what string, total int64, bytes bool) progress {
	file, ok := stderr.(*os.File)
	return newBar(stderr, ok && term.IsTerminal(int(file.Fd())), what, total, bytes)
}

// newBar uses no color, so NO_COLOR changes nothing.
func newBar(w io.Writer, visible bool, what string, total int64, bytes bool) progress {
	return progress{progressbar.NewOptions64(total,
		progressbar.OptionSetVisibility(visible),
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionEnableColorCodes(false),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // otherwise a goroutine draws it even after close
		progressbar.OptionClearOnFinish(),
	)}
}

// add moves the bar on. A file that grows while it is read exceeds the total,
// which is no reason to stop reading.
func (p progress) add(n int) { _ = p.bar.Add(n) }

// Write moves the bar on by the bytes that are read or written.
func (p progress) Write(b []byte) (int, error) {
	p.add(len(b))
	return len(b), nil
}

// close removes the bar, so that the next output begins a line.
func (p progress) close() { _ = p.bar.Clear() }

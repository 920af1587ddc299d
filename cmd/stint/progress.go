package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar for work that may take long. On anything but a terminal there is none, and its methods do nothing.
type progress struct{ bar *progressbar.ProgressBar }

// newProgress returns a bar on stderr for total steps, or bytes; -1 where nobody knows how many.
func newProgress(stderr io.Writer, what string, total int64, bytes bool) *progress {
	file, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return &progress{}
	}
	return &progress{newBar(stderr, what, total, bytes)}
}

// newBar uses no color, and so has nothing to ask NO_COLOR.
func newBar(w io.Writer, what string, total int64, bytes bool) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionEnableColorCodes(false),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

// add moves the bar on.
func (p *progress) add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n)
	}
}

// reader returns r, which moves the bar on as it is read.
func (p *progress) reader(r io.Reader) io.Reader {
	if p.bar == nil {
		return r
	}
	return io.TeeReader(r, p.bar)
}

// writer returns w, which moves the bar on as it is written.
func (p *progress) writer(w io.Writer) io.Writer {
	if p.bar == nil {
		return w
	}
	return io.MultiWriter(w, p.bar)
}

// close takes the bar away, so that what comes next on the terminal begins a line.
func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

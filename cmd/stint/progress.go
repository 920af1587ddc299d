package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar for work that may take long. If stderr is not a terminal,
// its methods do nothing.
type progress struct{ bar *progressbar.ProgressBar }

// newProgress returns a bar on stderr for total steps or bytes. A total of -1
// means that it is not known.
func newProgress(stderr io.Writer, what string, total int64, bytes bool) *progress {
	file, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return &progress{}
	}
	return &progress{newBar(stderr, what, total, bytes)}
}

// newBar uses no color, so NO_COLOR changes nothing.
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

// reader returns r, which moves the bar on when it is read.
func (p *progress) reader(r io.Reader) io.Reader {
	if p.bar == nil {
		return r
	}
	return io.TeeReader(r, p.bar)
}

// writer returns w, which moves the bar on when it is written.
func (p *progress) writer(w io.Writer) io.Writer {
	if p.bar == nil {
		return w
	}
	return io.MultiWriter(w, p.bar)
}

// close removes the bar, so that the next output begins a line.
func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

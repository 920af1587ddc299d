package console

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/stint-go/stint/internal/display"
)

// Progress is a line on a terminal that says how far long work is. It shows at
// least how long the work takes, so it moves even if the work does not say more.
type Progress struct {
	w     io.Writer // nil if it is not a terminal
	begun time.Time
	stop  chan struct{} // closed by Close

	mu          sync.Mutex // guards the rest, and w
	what        string
	bytes       bool // done and total are bytes
	done, total int64
	shown       bool
}

// NewProgress returns the progress of total steps or bytes. A total of -1 means
// that it is not known. Unless stderr is a terminal, nothing is shown.
func NewProgress(stderr io.Writer, what string, total int64, bytes bool) *Progress {
	file, ok := stderr.(*os.File)
	return newLine(stderr, ok && term.IsTerminal(int(file.Fd())), what, total, bytes)
}

func newLine(w io.Writer, visible bool, what string, total int64, bytes bool) *Progress {
	p := &Progress{what: what, total: total, bytes: bytes, begun: time.Now(), stop: make(chan struct{})}
	if visible {
		p.w = w
		go p.draw()
	}
	return p
}

// draw writes the line ten times a second.
func (p *Progress) draw() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if p.w != nil {
			p.shown = true
			fmt.Fprint(p.w, clearLine, p.line())
		}
		p.mu.Unlock()
	}
}

// clearLine returns to the beginning of the line, and clears it.
const clearLine = "\r\x1b[K"

func (p *Progress) line() string {
	count := fmt.Sprint
	if p.bytes {
		count = func(n ...any) string { return display.Size(n[0].(int64)) }
	}
	s := p.what
	if p.total > 0 {
		s += fmt.Sprintf("  %d%%  %s of %s", min(100, p.done*100/p.total), count(p.done), count(p.total))
	} else if p.done > 0 {
		s += "  " + count(p.done)
	}
	return fmt.Sprintf("%s  %v", s, time.Since(p.begun).Round(time.Second))
}

// Visible reports whether there is a terminal, which needs a total.
func (p *Progress) Visible() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w != nil
}

// Next begins another part of the work, which counts steps.
func (p *Progress) Next(what string, total int64) {
	p.mu.Lock()
	p.what, p.done, p.total, p.bytes = what, 0, total, false
	p.mu.Unlock()
}

// Add says that n more steps or bytes are done. A file that grows while it is read
// exceeds the total, which is no reason to stop reading.
func (p *Progress) Add(n int) {
	p.mu.Lock()
	p.done += int64(n)
	p.mu.Unlock()
}

// Write is Add for the bytes that are read or written.
func (p *Progress) Write(b []byte) (int, error) {
	p.Add(len(b))
	return len(b), nil
}

// Clear removes the line for a message, until it is drawn again.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown && p.w != nil {
		p.shown = false
		fmt.Fprint(p.w, clearLine)
	}
}

// Close removes the line, so that the next output begins one. It may be called
// twice.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stop:
		return
	default:
		close(p.stop)
	}
	if p.shown {
		fmt.Fprint(p.w, clearLine)
	}
	p.w = nil
}

// SizeOf returns the bytes of files together, or -1 if that is not known.
func SizeOf(paths []string) (size int64) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return -1
		}
		size += info.Size()
	}
	return size
}

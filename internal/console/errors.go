// Package console is how the command talks to its user: exit statuses, errors in
// one line, results as text or JSON, progress, and signals.
package console

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
)

// The exit statuses of every command.
const (
	StatusDone        = 0
	StatusDenied      = 1
	StatusUsage       = 2
	StatusFailed      = 3
	StatusTryLater    = 75 // sysexits.h calls it EX_TEMPFAIL
	StatusNotStarted  = 126
	StatusNotFound    = 127
	StatusInterrupted = 130
)

// ExitStatuses has their meanings, for help and manual.
var ExitStatuses = []struct {
	Status  int
	Meaning string
}{
	{StatusDone, "allowed, or done"},
	{StatusDenied, "denied"},
	{StatusUsage, "wrong arguments, limits or input: a retry will fail, too"},
	{StatusFailed, "the store failed, or the answer could not be written"},
	{StatusTryLater, "run: denied, try later"},
	{StatusNotStarted, "run: the command could not be started"},
	{StatusNotFound, "run: the command was not found"},
	{StatusInterrupted, "interrupted"},
}

// ExitStatusTable returns the exit statuses as lines of help.
func ExitStatusTable() string {
	var b strings.Builder
	b.WriteString("Exit status:\n")
	for _, s := range ExitStatuses {
		fmt.Fprintf(&b, "  %3d  %s\n", s.Status, s.Meaning)
	}
	b.WriteString("If run starts a command, the exit status is the command's, or 128+N if signal N ended it.")
	return b.String()
}

// Status returns the exit status of a command that ends with err.
func Status(err error) int {
	var e *Ended
	switch {
	case err == nil:
		return StatusDone
	case IsFailure(err):
		return StatusFailed
	case errors.As(err, &e):
		return e.Status
	}
	return StatusUsage
}

// Ended is an error with an exit status of its own. The text is empty if the
// user has been told.
type Ended struct {
	Status int
	Text   string
}

func (e *Ended) Error() string { return e.Text }

// End returns an error with an exit status of its own.
func End(status int, text string) error { return &Ended{status, text} }

var (
	ErrDenied      = &Ended{Status: StatusDenied}
	ErrInterrupted = &Ended{StatusInterrupted, "interrupted"}
)

// failure is an error of the store or of stdout, which the user did not cause.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// IsFailure reports whether Failed returned err, or an error in it.
func IsFailure(err error) bool { return errors.As(err, new(failure)) }

// Failed returns err as a failure, or nil if err is nil.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// Hinted is an error of the library with a hint of its own.
type Hinted struct {
	error
	todo string
}

func (h Hinted) Unwrap() error { return h.error }

// Hint returns an error of the library with a hint of its own.
func Hint(err error, todo string) error { return Hinted{err, todo} }

// hints has what the user can do about an error of the library.
var hints = []Hinted{
	{stint.ErrLocked, "another process has it open: try again, or wait longer with --lock-timeout"},
	{stint.ErrCorrupt, "save the readable part with stint verify --repair, move the file away to begin a new one, " +
		"or name another with --db"},
	{stint.ErrFormat, "use the program that wrote it, or name another file with --db"},
	{stint.ErrCostOverBurst, "no wait is long enough: lower --cost, or raise the limit's burst"},
}

// Temporary files are gone when the user reads an error, so their names would
// not help. A new file has such a name, in the directory of its final name,
// until it is complete. The copy of a running program's file has one too.
const (
	tempSuffix = `\.(?:new|compact|snapshot)-[0-9]{5,10}\b`
	tempCopy   = `[^ "]*stint-snapshot-[0-9]+\.db`
)

// readable returns the text of an error without the names of temporary files.
func readable(err error) string {
	return regexp.MustCompile(tempCopy).ReplaceAllString(
		regexp.MustCompile(tempSuffix).ReplaceAllString(err.Error(), ""), "the copy of the program's file")
}

// Report writes err in one line. Joined errors, such as those of a limits file
// with many mistakes, get a line each.
func Report(stderr io.Writer, err error) {
	if err == nil || err.Error() == "" {
		return
	}
	hint := ""
	if own := (Hinted{}); errors.As(err, &own) {
		hint = "; " + own.todo
	} else if i := slices.IndexFunc(hints, func(h Hinted) bool { return errors.Is(err, h.error) }); i >= 0 {
		hint = "; " + hints[i].todo
	} else if IsFailure(err) && errors.Is(err, fs.ErrPermission) {
		hint = "; see who owns the file and its directory, or name another with --db"
	}
	for line := range strings.Lines(readable(err)) {
		line = strings.ReplaceAll(": "+strings.TrimSpace(line), ": stint: ", ": ")[2:] // the prefix of library errors
		fmt.Fprintf(stderr, "stint: %s%s\n", display.Visible(line), hint)
	}
}

// Findings returns the lines of joined errors, without the library's prefix.
func Findings(err error) []string {
	lines := []string{}
	if err == nil {
		return lines
	}
	for line := range strings.Lines(err.Error()) {
		lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "stint: "))
	}
	return lines
}

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/replay"
)

// The exit statuses of every command.
const (
	statusDone        = 0
	statusDenied      = 1
	statusUsage       = 2
	statusFailed      = 3
	statusTryLater    = 75 // sysexits.h calls it EX_TEMPFAIL
	statusNotStarted  = 126
	statusNotFound    = 127
	statusInterrupted = 130
)

// exitStatuses has their meanings, for help and manual.
var exitStatuses = []struct {
	status  int
	meaning string
}{
	{statusDone, "allowed, or done"},
	{statusDenied, "denied"},
	{statusUsage, "wrong arguments, limits or input: a retry will fail, too"},
	{statusFailed, "the store failed, or the answer could not be written"},
	{statusTryLater, "run: denied, try later"},
	{statusNotStarted, "run: the command could not be started"},
	{statusNotFound, "run: the command was not found"},
	{statusInterrupted, "interrupted"},
}

// exitStatusTable returns the exit statuses as lines of help.
func exitStatusTable() string {
	var b strings.Builder
	b.WriteString("Exit status:\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, "  %3d  %s\n", s.status, s.meaning)
	}
	b.WriteString("If run starts a command, the exit status is the command's, or 128+N if signal N ended it.")
	return b.String()
}

func status(err error) int {
	var e *ended
	switch {
	case err == nil:
		return statusDone
	case isFailure(err):
		return statusFailed
	case errors.As(err, &e):
		return e.status
	}
	return statusUsage
}

// ended is an error with an exit status of its own. The text is empty if the
// user has been told.
type ended struct {
	status int
	text   string
}

func (e *ended) Error() string { return e.text }

var (
	errDenied      = &ended{status: statusDenied}
	errInterrupted = &ended{statusInterrupted, "interrupted"}
)

// failure is an error of the store or of stdout, which the user did not cause.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func isFailure(err error) bool {
	return errors.As(err, new(failure)) || errors.As(err, new(replay.StoreError))
}

// failed returns err as a failure, or nil if err is nil.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// hinted is an error of the library with a hint of its own.
type hinted struct {
	error
	todo string
}

func (h hinted) Unwrap() error { return h.error }

// hints has what the user can do about an error of the library.
var hints = []hinted{
	{stint.ErrLocked, "another process has it open: try again, or wait longer with --lock-timeout"},
	{stint.ErrCorrupt, "save the readable part with stint verify --repair, move the file away to begin a new one, " +
		"or name another with --db"},
	{stint.ErrFormat, "use the program that wrote it, or name another file with --db"},
	{stint.ErrCostOverBurst, "no wait is long enough: lower --cost, or raise the limit's burst"},
}

// badValue returns the error of a flag's value. It leaves out names of Go
// functions, such as strconv.ParseInt.
func badValue(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want := map[string]string{
		"int": "want a whole number", "int64": "want a whole number",
		"bool": "want true or false", "duration": "want a duration such as 90s, 5m or 36h",
	}[bad.GetFlag().Value.Type()]
	switch {
	case want == "":
		return err
	case errors.Is(err, strconv.ErrRange):
		want = "the number is too large"
	}
	return fmt.Errorf("invalid argument %q for --%s: %s", bad.GetValue(), bad.GetFlag().Name, want)
}

// Temporary files are gone when the user reads an error, so their names would
// not help. A new file has such a name, in the directory of its final name,
// until it is complete. The copy of a running program's file has one too.
var (
	tempSuffix = regexp.MustCompile(`\.(?:new|compact|snapshot)-[0-9]{5,10}\b`)
	tempCopy   = regexp.MustCompile(`[^ "]*stint-snapshot-[0-9]+\.db`)
)

// readable returns the text of an error without the names of temporary files.
func readable(err error) string {
	return tempCopy.ReplaceAllString(tempSuffix.ReplaceAllString(err.Error(), ""), "the copy of the program's file")
}

// report writes err in one line. Joined errors, such as those of a limits file
// with many mistakes, get a line each.
func report(stderr io.Writer, err error) {
	if err == nil || err.Error() == "" {
		return
	}
	hint := ""
	if own := (hinted{}); errors.As(err, &own) {
		hint = "; " + own.todo
	} else if i := slices.IndexFunc(hints, func(h hinted) bool { return errors.Is(err, h.error) }); i >= 0 {
		hint = "; " + hints[i].todo
	} else if isFailure(err) && errors.Is(err, fs.ErrPermission) {
		hint = "; see who owns the file and its directory, or name another with --db"
	}
	for line := range strings.Lines(readable(err)) {
		line = strings.ReplaceAll(": "+strings.TrimSpace(line), ": stint: ", ": ")[2:] // the prefix of library errors
		fmt.Fprintf(stderr, "stint: %s%s\n", display.Visible(line), hint)
	}
}

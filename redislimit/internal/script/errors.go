package script

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Errors of a call. Package redislimit exports the first four, with what they
// mean for its users.
var (
	ErrAway      = errors.New("redislimit: server is away, nothing was spent")
	ErrBusy      = errors.New("redislimit: too busy, nothing was spent")
	ErrNoAnswer  = errors.New("redislimit: no answer, it may have been spent")
	ErrCrossSlot = errors.New("redislimit: buckets take more than one call of the script")

	// ErrNotYet is the error of a call that is not made, because the server is away.
	ErrNotYet = fmt.Errorf("%w: it has not come back", ErrAway)

	// ErrNothingRan is in errors that the server replied before it wrote anything.
	ErrNothingRan = errors.New("nothing was spent")
)

// ServerError is an error that the server replied.
type ServerError string

// Error returns the server's words.
func (e ServerError) Error() string { return string(e) }

// WrongKey is the error for a key whose value is not a bucket.
type WrongKey struct{ Key, Why string }

// Error names the key, and says what to do.
func (e WrongKey) Error() string {
	return fmt.Sprintf("redislimit: key %q %s: delete it, or choose a Prefix", e.Key, e.Why)
}

// wrongKey returns the error that a word of the scripts stands for, or nil if the
// word is not one of theirs.
func wrongKey(word string, key func(i int) string, keys int) error {
	if word == "" {
		return nil
	}
	i, err := strconv.Atoi(word[1:])
	switch {
	case err != nil || i < 1 || i > keys:
		return nil
	case word[0] == 'T':
		return WrongKey{key(i - 1), "is no string, so it is not a bucket"}
	case word[0] == 'V':
		return WrongKey{key(i - 1), "has a value that is not a bucket's"}
	}
	return nil
}

// IsAway reports whether the error means that the server cannot be asked, or
// did not answer.
func IsAway(err error) bool { return errors.Is(err, ErrAway) || errors.Is(err, ErrNoAnswer) }

// awayReplies begin the errors of a server that cannot decide now and has
// spent nothing.
var awayReplies = []string{
	"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "ERR max number of clients",
	"NOREPLICAS", "MISCONF",
}

// movedReplies begin the errors of a server that may be the primary no longer, or not
// the one that its address leads to now: it is a replica, became one while it waited
// for replicas, or is starting. Another connection may lead to the primary. A cluster
// sends clients to the primary by MOVED, so its replies are not here. A server that is
// full, or whose disk fails, is still the primary.
var movedReplies = []string{"READONLY", "MASTERDOWN", "UNBLOCKED", "LOADING"}

// mayHaveMoved reports whether an error of a Client is one of movedReplies.
func mayHaveMoved(err error) bool {
	var replied ServerError
	if !errors.As(err, &replied) {
		return false
	}
	text, _, _ := words(replied)
	return slices.ContainsFunc(movedReplies, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// words returns the server's words in an error that it replied to a script, and
// whether the script says that it wrote nothing, or something. A server before Redis
// 7 replies "ERR Error running script (call to f_0): @user_script:1: @user_script:
// 1: -READONLY ...".
func words(replied ServerError) (text string, none, some bool) {
	text, none = strings.CutPrefix(string(replied), "STINT NONE ")
	text, some = strings.CutPrefix(text, "STINT SOME ")
	if i := strings.LastIndex(text, ": -"); i >= 0 && strings.Contains(text[:i], "@user_script") {
		text = text[i+len(": -"):]
	}
	return text, none, some
}

// Explain returns an error of a Client as one of this package.
func Explain(err error) error {
	var replied ServerError
	if !errors.As(err, &replied) {
		if errors.Is(err, ErrAway) || errors.Is(err, ErrNoAnswer) {
			return err
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return fmt.Errorf("%w: %w", ErrAway, err)
		}
		if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() { // a Client may have its own error for it
			return fmt.Errorf("%w: %w: %w", ErrNoAnswer, context.DeadlineExceeded, err)
		}
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	text, none, some := words(replied)
	err = ServerError(text)
	for _, prefix := range awayReplies {
		if !some && strings.HasPrefix(text, prefix) {
			return fmt.Errorf("%w: server replied: %w", ErrAway, err)
		}
	}
	switch {
	case some:
		return fmt.Errorf("%w: the script ended early: server replied: %w", ErrNoAnswer, err)
	case strings.HasPrefix(text, "CROSSSLOT"):
		return fmt.Errorf("%w: server replied: %w", ErrCrossSlot, err)
	case none || strings.HasPrefix(text, "NOPERM"):
		return fmt.Errorf("redislimit: server replied: %w: %w", err, ErrNothingRan)
	}
	return fmt.Errorf("redislimit: server replied: %w", err)
}

// refused reports whether nothing ran, for a reason that may be in one trip
// only.
func refused(err error) bool {
	var replied ServerError
	return errors.Is(err, ErrNothingRan) && !errors.Is(err, ErrAway) ||
		errors.As(err, &replied) && strings.HasPrefix(string(replied), "TRYAGAIN")
}

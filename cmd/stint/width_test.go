package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
)

func TestFolded(t *testing.T) {
	for _, c := range []struct {
		width      int
		text, want string
	}{
		{10, "one two three four\n", "one two\nthree four\n"},
		{10, "one two three four", "one two\nthree four"},
		{7, "one two\n", "one two\n"},
		{6, "one two\n", "one\ntwo\n"},
		{5, "a longerword b\n", "a\nlongerword\nb\n"},
		{12, "  --x  one two three\n", "  --x  one\n      two\n      three\n"},
		{16, "  --x  one two three\n", "  --x  one two\n       three\n"},
		{20, "  --long-flag  one two three\n", "  --long-flag  one\n      two three\n"},
		{8, "ä ö ü ß\nä ö ü ß é\n", "ä ö ü ß\nä ö ü ß\né\n"},
		{8, "\n\n", "\n\n"},
		{8, "", ""},
	} {
		assert.Equal(t, c.want, folded(c.text, c.width), "%d: %s", c.width, c.text)
	}
	assert.Equal(t, "one two\nthree\nfour\n\n  a b\n  cd\nseven", reflowed("one two three\nfour\n\n  a b cd\nseven", 7))
	assert.Equal(t, "one\ntwo", reflowed("one\ntwo", 7), "which is short enough as it is")
	assert.Equal(t, "  stint run \\\n    'a b c d e f g h' \\\n    x",
		foldedCommands("  stint run 'a b c d e f g h' x", 20))
	assert.Equal(t, "  stint run 'a b'", foldedCommands("  stint run 'a b'", 20))
	assert.Equal(t, "  # one two\n  # three\n  stint run a", foldedCommands("  stint run a  # one two three", 14))
	assert.NotContains(t, foldedCommands(strings.Repeat("x ' ' ", 20), 10), "\ue000")
}

// fits checks that no line of what was shown is longer than the terminal is
// wide, and that its words are those that are printed without a terminal.
func fits(t *testing.T, printed, shown string, columns int) {
	t.Helper()
	words := map[string]bool{`\`: true} // a command that goes on
	for _, word := range strings.Fields(printed) {
		words[word] = true
	}
	for line := range strings.Lines(shown) {
		line = strings.TrimSuffix(line, "\n")
		if len(strings.Fields(line)) > 1 && !aQuote.MatchString(line) { // a single word has no place to break
			assert.LessOrEqual(t, wide(line), columns, line)
		}
		for _, word := range strings.Fields(aBar.ReplaceAllString(line, "")) {
			assert.True(t, words[word] || strings.HasSuffix(word, "…"), "%q of %q", word, line)
		}
		for _, b := range aBar.FindAllString(line, -1) {
			assert.Regexp(t, regexp.QuoteMeta(b)+` +(\d+ of \d+|admitted|denied)`, line)
		}
	}
}

// commandsOf returns the commands of examples, one a line, as a shell reads them.
func commandsOf(examples string) string {
	examples = regexp.MustCompile(` *\\\n *`).ReplaceAllString(examples, " ")
	examples = regexp.MustCompile(`(?m) *# .*$`).ReplaceAllString(examples, "")
	return regexp.MustCompile(`\n+`).ReplaceAllString(strings.TrimSpace(examples), "\n")
}

// Examples can be pasted from the help in a terminal of any width.
func TestHelpExamples(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		for _, columns := range []int{40, 60, 80, 200} {
			_, shown, _ := strings.Cut(helpText(cmd, columns), "\nExamples:\n")
			shown, _, _ = strings.Cut(shown, "\n\n")
			assert.Equal(t, commandsOf(cmd.Example), commandsOf(shown), "%s, %d columns", cmd.CommandPath(), columns)
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}

// aQuote matches a line that is one word in quotes.
var aQuote = regexp.MustCompile(`^ *('[^']*'|"[^"]*")( \\)?$`)

var aBar = regexp.MustCompile(`[█░]+`)

func TestHelpWidth(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		for _, columns := range []int{40, 60, 80, 200} {
			fits(t, helpText(cmd, 0), helpText(cmd, columns), columns)
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}

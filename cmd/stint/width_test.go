package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/stint-go/stint/internal/display"
)

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
			assert.LessOrEqual(t, display.Wide(line), columns, line)
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

// aQuote matches a line that is one word in quotes.
var aQuote = regexp.MustCompile(`^ *('[^']*'|"[^"]*")( \\)?$`)

var aBar = regexp.MustCompile(`[█░]+`)

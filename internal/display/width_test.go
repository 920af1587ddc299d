package display

import (
	"strings"
	"testing"

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
		assert.Equal(t, c.want, Folded(c.text, c.width), "%d: %s", c.width, c.text)
	}
	assert.Equal(t, "one two\nthree\nfour\n\n  a b\n  cd\nseven", Reflowed("one two three\nfour\n\n  a b cd\nseven", 7))
	assert.Equal(t, "one\ntwo", Reflowed("one\ntwo", 7), "which is short enough as it is")
	assert.Equal(t, "  stint run \\\n    'a b c d e f g h' \\\n    x",
		FoldedCommands("  stint run 'a b c d e f g h' x", 20))
	assert.Equal(t, "  stint run 'a b'", FoldedCommands("  stint run 'a b'", 20))
	assert.Equal(t, "  # one two\n  # three\n  stint run a", FoldedCommands("  stint run a  # one two three", 14))
	assert.NotContains(t, FoldedCommands(strings.Repeat("x ' ' ", 20), 10), "\ue000")
}

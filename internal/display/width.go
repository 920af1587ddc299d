package display

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Folded breaks lines that are longer than width at spaces. A word that is
// longer stays whole.
func Folded(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, end := strings.CutSuffix(line, "\n")
		for _, part := range foldLine([]rune(line), width) {
			b.WriteString(part + "\n")
		}
		if !end {
			return strings.TrimSuffix(b.String(), "\n")
		}
	}
	return b.String()
}

// foldLine returns the parts of a line that is broken at spaces. Later parts
// are indented as far as the text after the line's last two spaces, if that text
// begins in the left half.
func foldLine(line []rune, width int) (parts []string) {
	indent := 0
	for indent < len(line) && line[indent] == ' ' {
		indent++
	}
	hang := indent
	for i := len(line) - 1; i > indent+1; i-- {
		if line[i-1] == ' ' && line[i-2] == ' ' && line[i] != ' ' {
			if hang = i; hang > width/2 {
				hang = indent + 4
			}
			break
		}
	}
	for len(line) > width {
		cut := -1
		for i := indent + 1; i < len(line) && (i <= width || cut < 0); i++ {
			if line[i] == ' ' {
				cut = i
			}
		}
		if cut < 0 {
			break
		}
		parts = append(parts, strings.TrimRight(string(line[:cut]), " "))
		rest := strings.TrimLeft(string(line[cut:]), " ")
		line, indent = []rune(strings.Repeat(" ", hang)+rest), hang
	}
	return append(parts, strings.TrimRight(string(line), " "))
}

// Reflowed wraps a paragraph again if one of its lines is longer than width,
// and folds indented lines.
func Reflowed(text string, width int) string {
	var b strings.Builder
	var paragraph []string
	flush := func() {
		if long := slices.ContainsFunc(paragraph, func(l string) bool { return Wide(l) > width }); long {
			paragraph = []string{strings.Join(paragraph, " ")}
		}
		for _, line := range paragraph {
			b.WriteString(Folded(line+"\n", width))
		}
		paragraph = nil
	}
	for line := range strings.Lines(text + "\n") {
		if line = strings.TrimSuffix(line, "\n"); line == "" || line[0] == ' ' {
			flush()
			b.WriteString(Folded(line+"\n", width))
		} else {
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// FoldedCommands breaks shell commands between their words, with a backslash,
// so that they can still be run. The comment of a command that is too long goes
// above it. A word in quotes stays whole.
func FoldedCommands(text string, width int) string {
	const space = "\uE000" // inside quotes
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if Wide(line) <= width {
			continue
		}
		line, comment, _ := strings.Cut(line, " # ")
		if comment != "" {
			comment = "  # " + strings.ReplaceAll(Folded(comment, width-len("  # ")), "\n", "\n  # ") + "\n"
		}
		line = quoted().ReplaceAllStringFunc(strings.TrimRight(line, " "), func(word string) string {
			return strings.ReplaceAll(word, " ", space)
		})
		if Wide(line) > width {
			line = strings.Join(foldLine([]rune(line), width-len(`   \`)), " \\\n  ")
		}
		lines[i] = comment + strings.ReplaceAll(line, space, " ")
	}
	return strings.Join(lines, "\n")
}

var quoted = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`'[^']*'|"[^"]*"`) })

// Wide returns the columns that a text takes.
func Wide(text string) int { return utf8.RuneCountInString(text) }

// Pad appends spaces to s, at least one, up to width characters.
func Pad(s string, width int) string {
	return s + strings.Repeat(" ", max(1, width-Wide(s)))
}

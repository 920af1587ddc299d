// Package docs_test runs what the documents show.
//
// TestBlocks wants each fenced block of README.md and of docs/ to be one of
// these:
//
//   - Go with a package clause: a program. TestPrograms compiles it in an empty
//     module, runs it, and compares what it prints with the text block after it.
//   - Other Go: part of an Example, which go test runs.
//   - A block after <!-- file: PATH -->: part of that file.
//   - A session in README.md or tour.md, with its files. TestTour of cmd/stint runs
//     it.
//   - A block after <!-- run by: TEST -->: TEST runs it.
//   - A block after <!-- not run: REASON -->.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// block is a fenced block of a document.
type block struct {
	language, text string
	mark, value    string // of the comment before it: "file" and its path
	named          bool   // a file of the tour: "`access.log`:" is before it
}

// isProgram reports whether the block is a whole program.
func (b block) isProgram() bool {
	return b.language == "go" && strings.HasPrefix(b.text, "package main\n")
}

var markPattern = regexp.MustCompile(`<!-- ([a-z ]+): (.+) -->\s*$`)

// readBlocks returns the blocks of a document.
func readBlocks(t *testing.T, path string) (blocks []block) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	parts := strings.Split("\n"+string(text), "\n```")
	for i := 1; i < len(parts); i += 2 {
		language, code, _ := strings.Cut(parts[i], "\n")
		b := block{language: language, text: code + "\n"}
		if m := markPattern.FindStringSubmatch(parts[i-1]); m != nil {
			b.mark, b.value = m[1], m[2]
		}
		b.named = filepath.Base(path) == "tour.md" && strings.HasSuffix(strings.TrimSpace(parts[i-1]), "`:")
		blocks = append(blocks, b)
	}
	return blocks
}

// documents returns the paths of the documents whose blocks must run.
func documents(t *testing.T) []string {
	docs, err := filepath.Glob("*.md")
	require.NoError(t, err)
	return append(docs, "../README.md")
}

// readTests returns the bodies of the examples, and the names of the tests, of
// all modules.
func readTests(t *testing.T) (examples map[string]string, tests map[string]bool) {
	examples, tests = make(map[string]string), make(map[string]bool)
	function := regexp.MustCompile(`(?ms)^func ((?:Example|Test)\w*)\([^\n]*\) \{\n(.*?)^\}`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range function.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
			if strings.HasPrefix(string(m[1]), "Example") && strings.Contains(string(m[2]), "utput:") {
				examples[path+": "+string(m[1])] = string(m[2])
			}
		}
		return nil
	}))
	return examples, tests
}

func TestBlocks(t *testing.T) {
	examples, tests := readTests(t)
	for _, path := range documents(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			blocks := readBlocks(t, path)
			program := false // or what it prints
			for _, b := range blocks {
				program = b.isProgram() || program && b.language == "text"
				switch {
				case program: // TestPrograms
				case b.language == "console": // TestTour
					assert.Contains(t, []string{"README.md", "tour.md"}, filepath.Base(path))
				case b.named: // a file of the tour
				case b.mark == "file":
					file, err := os.ReadFile(filepath.Join("..", b.value))
					require.NoError(t, err)
					assert.True(t, contains(string(file), b.text), "%s has no such lines:\n%s", b.value, b.text)
				case b.mark == "run by":
					assert.True(t, tests[b.value], "no test is called %s", b.value)
				case b.mark == "not run":
					assert.NotEmpty(t, b.value)
				case b.language == "go":
					var in []string
					for name, body := range examples {
						if contains(body, b.text) {
							in = append(in, name)
						}
					}
					assert.NotEmpty(t, in, "no Example has these lines:\n%s", b.text)
				default:
					t.Errorf("nothing runs this block, and no comment says why:\n%s", b.text)
				}
			}
		})
	}
}

// TestLinks requires that the files which the documents link to exist.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, path := range append(documents(t), "../CHANGELOG.md", "../bench/README.md") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), m[1]))
			assert.NoError(t, err, path)
		}
	}
}

// contains reports whether lines are part of a text, perhaps with more tabs or
// spaces before each of them.
func contains(text, lines string) bool {
	for _, indent := range []string{"", "\t", "\t\t", "\t\t\t", "  ", "    ", "      ", strings.Repeat(" ", 12)} {
		var indented strings.Builder
		for line := range strings.Lines(lines) {
			if line != "\n" {
				indented.WriteString(indent)
			}
			indented.WriteString(line)
		}
		if strings.Contains("\n"+text, "\n"+indented.String()) {
			return true
		}
	}
	return false
}

package stint_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/limitsfile"
)

// TestREADME finds every Go block of the README in one example, and what the
// first one prints in the block after it. The YAML is a limits file and its
// overrides.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := codeBlocks(string(text))
	bodies := exampleBodies(t)

	checked := 0
	var yaml [][]byte
	for i, b := range blocks {
		if b.language == "yaml" {
			yaml = append(yaml, []byte(b.text))
		}
		if b.language != "go" {
			continue
		}
		checked++
		var in []string
		for name, body := range bodies {
			for indent := range 3 { // it may be inside a loop
				if strings.Contains(body, indented("\n"+b.text, indent)) {
					in = append(in, name)
				}
			}
		}
		assert.Len(t, in, 1, "the README has code that is not in one example:\n%s", b.text)
		if checked == 1 {
			require.Less(t, i+1, len(blocks))
			_, output, found := strings.Cut(bodies["Example"], "// Output:\n")
			require.True(t, found)
			assert.Equal(t, strings.ReplaceAll(output, "\t// ", ""), blocks[i+1].text, "what the README says its code prints")
		}
	}
	assert.Equal(t, 2, checked, "blocks of Go")

	require.Len(t, yaml, 2)
	limits, err := limitsfile.Parse(names, yaml[0], yaml[1])
	require.NoError(t, err)
	limit, ok := limits.For(OrdersPerAccount.Key("12345678"))
	assert.True(t, ok)
	assert.EqualValues(t, 600, limit.Count)
}

// indented returns the lines of text, with more tabs before each.
func indented(text string, tabs int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = strings.Repeat("\t", 1+tabs) + line
		}
	}
	return strings.Join(lines, "\n")
}

type codeBlock struct{ language, text string }

// codeBlocks returns the fenced blocks of a Markdown text.
func codeBlocks(text string) (blocks []codeBlock) {
	for i, part := range strings.Split("\n"+text, "\n```") {
		if i%2 == 1 {
			language, code, _ := strings.Cut(part, "\n")
			blocks = append(blocks, codeBlock{language, code + "\n"})
		}
	}
	return blocks
}

// exampleBodies returns what is between the braces of each Example, by name.
func exampleBodies(t *testing.T) map[string]string {
	files, err := filepath.Glob("example*_test.go")
	require.NoError(t, err)
	bodies := make(map[string]string)
	for _, file := range files {
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?ms)^func (Example\w*)\(\) \{(.*?)^\}`).FindAllSubmatch(src, -1) {
			bodies[string(m[1])] = string(m[2])
		}
	}
	require.NotEmpty(t, bodies)
	return bodies
}

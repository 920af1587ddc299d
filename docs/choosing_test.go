package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChoosingNumbers wants the numbers in the tables of choosing.md to be those
// that the Examples it names print, row by row.
func TestChoosingNumbers(t *testing.T) {
	number := regexp.MustCompile(`\d+`)
	result := regexp.MustCompile(`(?:at once|a day|midnight|hours|days) +(\d+)`)
	page, err := os.ReadFile("choosing.md")
	require.NoError(t, err)
	source, err := os.ReadFile("../example_choosing_test.go")
	require.NoError(t, err)
	for _, example := range []string{"ExamplePerDay", "ExampleEachDay"} {
		_, body, ok := strings.Cut(string(source), "func "+example+"() {")
		require.True(t, ok, example)
		_, output, ok := strings.Cut(body, "// Output:\n")
		require.True(t, ok, example)
		output, _, _ = strings.Cut(output, "\n}")

		_, table, ok := strings.Cut(string(page), "(`"+example+"`):\n\n")
		require.True(t, ok, example)
		table, _, _ = strings.Cut(table, "\n\n")
		rows := strings.Split(table, "\n")[2:]
		lines := strings.Split(output, "\n")
		require.Len(t, rows, len(lines), example)
		for i, row := range rows {
			cells := strings.Split(strings.Trim(row, "|"), "|")[1:] // the first has the limit
			shown := number.FindAllString(strings.ReplaceAll(strings.Join(cells, " "), ",", ""), -1)
			var printed []string
			for _, m := range result.FindAllStringSubmatch(lines[i], -1) {
				printed = append(printed, m[1])
			}
			require.Equal(t, printed, shown, "%s: %s", example, row)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// hitsOf returns the kinds of the hits in a file of this name and content, and
// the number of sentences.
func hitsOf(t *testing.T, name, content string) (got []string, sentences int) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	hits, sentences, err := check(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		got = append(got, h.kind)
	}
	return got, sentences
}

func TestCheck(t *testing.T) {
	long := strings.Repeat("word ", 30) + "end."
	for _, c := range []struct {
		name, file, content string
		want                []string
		sentences           int
	}{
		{"sentences", "a.md", "One. Two, e.g. this.\nThree `a. B` ends here.\n\n- four\n- five", nil, 5},
		{"long", "a.md", strings.ReplaceAll(long, " word word word", "\nword word word"), []string{longSentence}, 1},
		{"30 words", "a.md", "word\n" + strings.Repeat("x ", 28) + "end.", nil, 1},
		{"where", "a.md", "It fails, where the disk is full. Where it is not, it goes on.", []string{where, where}, 2},
		{"place", "a.md", "The directory where it is.", nil, 1},
		{"but for", "a.md", "Nothing but for this. But not for that.", []string{butFor}, 2},
		{"who", "a.md", "Who waits is told. The caller who waits. Of who waits.", []string{who, who}, 3},
		{"question", "a.md", "Who is limited?", nil, 1},
		{"table", "a.md", "| " + long + " | Where not |", []string{longSentence, where}, 2},
		{"wide prose", "a.md", strings.Repeat("x", 101), []string{wideProse}, 1},
		{"code", "a.md", "```go\nwhere\n" + strings.Repeat("x", 121) + "\n```", []string{wideCode}, 0},
		{"output", "a.md", "```text\n" + strings.Repeat("x", 121) + "\n```", nil, 0},
		{"quoted", "a.md", `"Where" is a word, and "but for" are two.`, nil, 1},
		{"comment", "a.go",
			"package a\n\n// Where it is\n// not. Here\n//\n//\tWhere code is.\nvar a int // where\n",
			[]string{where, where}, 3},
		{"wide comment", "a.go", "package a\n\n// " + strings.Repeat("x", 98), []string{wideProse}, 1},
		{"wide code", "a.go", "package a\n\nvar x = `" + strings.Repeat("x", 120) + "`", []string{wideCode}, 0},
		{"output of an example", "a.go", "package a\n\n// Output: where\n", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, sentences := hitsOf(t, c.file, c.content)
			if !reflect.DeepEqual(got, c.want) || sentences != c.sentences {
				t.Errorf("%q: got %q and %d sentences, want %q and %d", c.content, got, sentences, c.want, c.sentences)
			}
		})
	}
}

func TestGood(t *testing.T) {
	for _, c := range []struct {
		counts    map[string]int
		sentences int
		want      bool
	}{
		{nil, 0, true},
		{map[string]int{longSentence: 19}, 1000, true},
		{map[string]int{longSentence: 20}, 1000, false},
		{map[string]int{where: 1}, 1000, false},
	} {
		if got := good(c.counts, c.sentences); got != c.want {
			t.Errorf("%v of %d: %v", c.counts, c.sentences, got)
		}
	}
}

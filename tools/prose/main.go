// Command prose finds breaches of style rules in the comments, documents and
// code of a tree. It prints each hit with its file and line, then one line of
// counts. It exits with 1 if a count is above its target.
//
//	go -C tools run ./prose ..
//
// It counts
//
//   - sentences of more than 30 words,
//   - "where" at the start of a clause, and "but for" in the sense of except,
//   - "who" after a word that is not a noun,
//   - lines of prose over 100 columns, and lines of code over 120.
//
// A tab is one column. Tables and the output of commands may be wider.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The kinds of hits.
const (
	longSentence = "sentence over 30 words"
	where        = "where at the start of a clause"
	butFor       = "but for"
	who          = "who without a noun"
	wideProse    = "prose over 100 columns"
	wideCode     = "code over 120 columns"
)

var kinds = []string{longSentence, where, butFor, who, wideProse, wideCode}

// longShare is the share of sentences that may be over 30 words, in percent.
// There may be no hits of the other kinds.
const longShare = 2

// skipped are directories of data, and of other people's files. bench writes
// results.
var skipped = []string{"testdata", "node_modules", "results"}

// hit is a place that breaks a rule.
type hit struct {
	file string
	line int
	kind string
	text string
}

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	hits, sentences, err := check(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	counts := make(map[string]int)
	for _, h := range hits {
		counts[h.kind]++
		fmt.Printf("%s:%d: %s: %s\n", h.file, h.line, h.kind, h.text)
	}
	fmt.Printf("%d sentences", sentences)
	for _, kind := range kinds {
		fmt.Printf("; %d %s", counts[kind], kind)
	}
	fmt.Println()
	if !good(counts, sentences) {
		os.Exit(1)
	}
}

// good reports whether each count is within its target.
func good(counts map[string]int, sentences int) bool {
	for kind, n := range counts {
		if kind == longSentence && n*100 < longShare*sentences {
			continue
		}
		if n > 0 {
			return false
		}
	}
	return true
}

// check returns the hits in all files below dir, and the number of sentences.
func check(dir string) (hits []hit, sentences int, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != dir && (strings.HasPrefix(d.Name(), ".") || slices.Contains(skipped, d.Name())) {
			return fs.SkipDir
		}
		var t *text
		switch filepath.Ext(path) {
		case ".go":
			t, err = readGo(path)
		case ".md":
			t, err = readMarkdown(path)
		}
		if err != nil || t == nil {
			return err
		}
		for _, s := range t.sentences() {
			sentences++
			for _, kind := range s.kinds() {
				t.hit(s[0].line, kind, s.String())
			}
		}
		name, _ := filepath.Rel(dir, path)
		for _, h := range t.hits {
			h.file = name
			hits = append(hits, h)
		}
		return nil
	})
	slices.SortStableFunc(hits, func(a, b hit) int { return strings.Compare(a.file, b.file) })
	return hits, sentences, err
}

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
)

// item matches the start of an item of a list.
var item = regexp.MustCompile(`^\s*([-*]|\d+\.)\s+`)

// outputOf matches the comment that has the output of an example.
var outputOf = regexp.MustCompile(`^// (Unordered output|Output):`)

// readGo returns the comments of a Go file.
func readGo(path string) (*text, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	t := &text{}
	comment := make(map[int]bool) // lines with a comment
	output := make(map[int]bool)  // lines of text that tests compare
	for _, group := range file.Comments {
		t.comment(files, group)
		isOutput := false
		for _, c := range group.List {
			isOutput = isOutput || outputOf.MatchString(c.Text)
			from, to := files.Position(c.Pos()).Line, files.Position(c.End()).Line
			for line := from; line <= to; line++ {
				comment[line], output[line] = true, isOutput
			}
		}
	}
	for line := range rawLines(files, file) {
		output[line] = true
	}
	for i, s := range strings.Split(string(src), "\n") {
		switch {
		case output[i+1]:
		case comment[i+1] && isComment(s):
			t.width(i+1, s, 100, wideProse)
		default:
			t.width(i+1, s, 120, wideCode)
		}
	}
	return t, nil
}

// rawLines returns the lines of raw strings, except the first of each.
func rawLines(files *token.FileSet, file *ast.File) map[int]bool {
	lines := make(map[int]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
			from := files.Position(lit.Pos()).Line
			for i := range strings.Count(lit.Value, "\n") {
				lines[from+1+i] = true
			}
		}
		return true
	})
	return lines
}

// isComment reports whether a line within a comment has no code before it. An
// indented line is output or a table, and may be as wide as code.
func isComment(s string) bool {
	s = strings.TrimSpace(s)
	return !strings.HasPrefix(s, "//\t") && (strings.HasPrefix(s, "//") || !strings.Contains(s, "//"))
}

// comment adds the prose of a group of comments.
func (t *text) comment(files *token.FileSet, group *ast.CommentGroup) {
	t.begin()
	inItem := false
	for _, c := range group.List {
		line := files.Position(c.Pos()).Line
		for i, s := range strings.Split(c.Text, "\n") {
			if directive := strings.HasPrefix(s, "//go:") || strings.HasPrefix(s, "//nolint"); directive {
				continue
			}
			if i == 0 {
				s = s[2:]
			}
			s = strings.TrimSuffix(s, "*/")
			trimmed := strings.TrimPrefix(s, " ")
			switch {
			case outputOf.MatchString(c.Text):
				return
			case strings.TrimSpace(s) == "":
				t.begin()
				inItem = false
			case strings.HasPrefix(trimmed, "# "):
				t.begin()
			case item.MatchString(s):
				t.begin()
				t.add(line+i, item.ReplaceAllString(s, ""))
				inItem = true
			case strings.HasPrefix(trimmed, "\t") || strings.HasPrefix(trimmed, "  ") && !inItem:
				t.begin() // code
			default:
				t.add(line+i, s)
			}
		}
	}
}

// readMarkdown returns the prose of a Markdown file.
func readMarkdown(path string) (*text, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := &text{}
	fence := false
	var language string
	for i, s := range strings.Split(string(src), "\n") {
		trimmed := strings.TrimSpace(s)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fence, language = !fence, strings.Trim(trimmed, "`")
			t.begin()
		case fence:
			if language != "" && language != "console" && language != "text" {
				t.width(i+1, s, 120, wideCode)
			}
		case strings.HasPrefix(trimmed, "|"):
			for _, cell := range strings.Split(trimmed, "|") {
				t.begin()
				t.add(i+1, cell)
			}
			t.begin()
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
			t.begin()
		case strings.HasPrefix(s, "    ") && !strings.HasPrefix(trimmed, "-") && len(t.paragraphs[len(t.paragraphs)-1]) == 0:
			t.width(i+1, s, 120, wideCode)
		default:
			t.width(i+1, s, 100, wideProse)
			if item.MatchString(s) {
				t.begin()
				s = item.ReplaceAllString(s, "")
			}
			t.add(i+1, strings.TrimPrefix(s, "> "))
		}
	}
	return t, nil
}

package docs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExamples requires that each Example is shown at the name that it belongs to.
// go vet accepts the name of a variable, or of a method of an interface, and pkgsite
// then shows the Example nowhere. With -v the test lists all Examples.
func TestExamples(t *testing.T) {
	n := 0
	require.NoError(t, filepath.WalkDir("..", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); name == "testdata" || name == "node_modules" || dir != ".." && strings.HasPrefix(name, ".") {
			return filepath.SkipDir
		}
		shown, lost := examplesIn(t, dir)
		for _, example := range shown {
			t.Logf("%s: %s", dir, example)
		}
		require.Empty(t, lost, "Examples in %s that are shown nowhere", dir)
		n += len(shown)
		return nil
	}))
	require.Greater(t, n, 50)
}

// examplesIn returns the Examples of the package in a folder that belong to one of
// its names, or to the package, and the functions that are Examples of nothing.
func examplesIn(t *testing.T, dir string) (shown, lost []string) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files, tests []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		if files = append(files, file); strings.HasSuffix(name, "_test.go") {
			tests = append(tests, file)
		}
	}
	if len(tests) == 0 || len(tests) == len(files) {
		return nil, nil
	}
	pkg, err := doc.NewFromFiles(fset, files, "example.com/"+filepath.Base(dir))
	require.NoError(t, err)
	add := func(of string, examples []*doc.Example) {
		for _, e := range examples {
			shown = append(shown, strings.TrimSuffix("Example"+of+"_"+e.Suffix, "_"))
		}
	}
	functions := func(of string, functions []*doc.Func) {
		for _, f := range functions {
			add(of+f.Name, f.Examples)
		}
	}
	add("", pkg.Examples)
	functions("", pkg.Funcs)
	for _, typ := range pkg.Types {
		add(typ.Name, typ.Examples)
		functions("", typ.Funcs)
		functions(typ.Name+"_", typ.Methods)
	}
	for _, e := range doc.Examples(tests...) {
		if name := "Example" + e.Name; !slices.Contains(shown, name) {
			lost = append(lost, name)
		}
	}
	return shown, lost
}

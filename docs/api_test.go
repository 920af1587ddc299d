package docs_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/api.txt anew")

// TestAPI holds docs/api.txt to the exported names of every package that a
// program can import. Its first lines, which begin with #, say of a name that few
// programs need why it is there. After a change that is meant:
//
//	go test ./docs -run TestAPI -update
func TestAPI(t *testing.T) {
	file, err := os.ReadFile("api.txt")
	require.NoError(t, err)
	var reasons, want strings.Builder
	api := exported(t)
	for line := range strings.Lines(string(file)) {
		name, isReason := strings.CutPrefix(line, "# ")
		if !isReason {
			want.WriteString(line)
			continue
		}
		reasons.WriteString(line)
		name, _, _ = strings.Cut(name, " — ")
		require.Contains(t, api, name, "the reason for a name that is gone")
	}
	if *update {
		require.NoError(t, os.WriteFile("api.txt", []byte(reasons.String()+api), 0o644))
		return
	}
	require.Equal(t, want.String(), api, "the API has changed: if it should, run go test ./docs -run TestAPI -update")
}

// exported returns a line for each exported name of each public package.
func exported(t *testing.T) string {
	var lines []string
	require.NoError(t, filepath.WalkDir("..", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		switch name := d.Name(); {
		case name == "internal", name == "testdata", name == "examples", name == "tools", name == "bench", name == "cmd",
			name == "conformance", name == "node_modules", dir != ".." && strings.HasPrefix(name, "."):
			return filepath.SkipDir
		}
		lines = append(lines, exportedIn(t, dir)...)
		return nil
	}))
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

// exportedIn returns the lines of the package in a folder. Files of all systems
// count, because a name that one system lacks is part of the API, too.
func exportedIn(t *testing.T, dir string) (lines []string) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	if len(files) == 0 || files[0].Name.Name == "main" {
		return nil
	}
	pkg, err := doc.NewFromFiles(fset, files, "example.com/"+files[0].Name.Name)
	require.NoError(t, err)

	prefix := path.Join("stint", filepath.ToSlash(strings.TrimPrefix(dir, ".."))) + ": "
	add := func(words ...any) { // a string, or a node of the syntax
		var text bytes.Buffer
		for _, word := range words {
			if s, ok := word.(string); ok {
				text.WriteString(s)
			} else {
				require.NoError(t, printer.Fprint(&text, fset, word))
			}
		}
		lines = append(lines, prefix+strings.Join(strings.Fields(text.String()), " "))
	}
	values := func(values []*doc.Value) {
		for _, v := range values {
			for _, name := range v.Names {
				if ast.IsExported(name) {
					add(v.Decl.Tok.String() + " " + name)
				}
			}
		}
	}
	functions := func(functions []*doc.Func) {
		for _, f := range functions {
			f.Decl.Body, f.Decl.Doc = nil, nil
			add(f.Decl)
		}
	}
	values(pkg.Consts)
	values(pkg.Vars)
	functions(pkg.Funcs)
	for _, typ := range pkg.Types {
		values(typ.Consts)
		values(typ.Vars)
		functions(typ.Funcs)
		functions(typ.Methods)
		for _, spec := range typ.Decl.Specs {
			spec := spec.(*ast.TypeSpec)
			switch kind := spec.Type.(type) {
			case *ast.StructType:
				add("type " + typ.Name + " struct")
				fields(kind.Fields, func(name string, of ast.Expr) {
					add("type "+typ.Name+" struct, "+name+" ", of)
				})
			case *ast.InterfaceType:
				add("type " + typ.Name + " interface")
				fields(kind.Methods, func(name string, of ast.Expr) {
					add("type "+typ.Name+" interface, "+name+" ", of)
				})
			default:
				add("type "+typ.Name+" ", kind)
			}
		}
	}
	return lines
}

// fields calls yield with each exported field or method, and with what is
// embedded.
func fields(list *ast.FieldList, yield func(name string, of ast.Expr)) {
	for _, field := range list.List {
		if len(field.Names) == 0 {
			yield("embedded", field.Type)
		}
		for _, name := range field.Names {
			if name.IsExported() {
				yield(name.Name, field.Type)
			}
		}
	}
}

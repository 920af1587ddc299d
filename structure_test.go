package stint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readingOrder are the files of the package. A file mentions only what the files before it declare.
var readingOrder = []string{
	"gcra", "errors", "keys", "limits",
	"store", "store_mem", "prefetch", "filter", "journal", "store_bbolt",
	"table", "options", "clock", "flush", "decide", "limiter", "many", "wait", "inspect",
}

// group returns the name in readingOrder that a file stands under: its own, or that of the file it was split from.
func group(name string) string {
	for ; name != "" && !slices.Contains(readingOrder, name); name = name[:max(0, strings.LastIndexByte(name, '_'))] {
	}
	return name
}

// importers are those that import what only one file may.
var importers = map[string]string{"go.etcd.io/bbolt": "store_bbolt", "go.etcd.io/bbolt/errors": "store_bbolt"}

func parseFiles(t *testing.T) map[string]*ast.File {
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	files := make(map[string]*ast.File)
	fset := token.NewFileSet()
	for _, e := range entries {
		name, isGo := strings.CutSuffix(e.Name(), ".go")
		if !isGo || strings.HasSuffix(name, "_test") || name == "doc" {
			continue
		}
		f, err := parser.ParseFile(fset, e.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files[name] = f
	}
	return files
}

// declared returns the names that a file adds to the package: what stands at its top, and its methods.
func declared(f *ast.File) (names, methods []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				methods = append(methods, d.Name.Name)
			} else {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names, methods
}

// mentioned returns the identifiers of a file that stand by themselves, and those that are selected: of a value, not of an
// imported package. What the file declares inside its functions is left out, and with it what that shadows.
func mentioned(f *ast.File) (names, selected map[string]bool) {
	names, selected = make(map[string]bool), make(map[string]bool)
	imported := make(map[string]bool)
	for _, spec := range f.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		imported[path[strings.LastIndex(path, "/")+1:]] = true
	}
	fields := make(map[*ast.Ident]bool) // which are not of the package
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); !ok || !imported[pkg.Name] {
				selected[n.Sel.Name] = true
			}
			fields[n.Sel] = true
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				fields[key] = true
			}
		case *ast.StructType:
			for _, field := range n.Fields.List {
				for _, name := range field.Names {
					fields[name] = true
				}
			}
		case *ast.InterfaceType:
			for _, field := range n.Methods.List {
				for _, name := range field.Names {
					fields[name] = true
				}
			}
		case *ast.FuncDecl:
			if n.Recv != nil {
				fields[n.Name] = true
			}
		}
		return true
	})
	local := make(map[string]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, x := range n.Lhs {
					if id, ok := x.(*ast.Ident); ok {
						local[id.Name] = true
					}
				}
			}
		case *ast.RangeStmt:
			for _, x := range []ast.Expr{n.Key, n.Value} {
				if id, ok := x.(*ast.Ident); ok {
					local[id.Name] = true
				}
			}
		case *ast.FuncType:
			for _, list := range []*ast.FieldList{n.Params, n.Results} {
				if list != nil {
					for _, field := range list.List {
						for _, name := range field.Names {
							local[name.Name] = true
						}
					}
				}
			}
		case *ast.DeclStmt:
			for _, spec := range n.Decl.(*ast.GenDecl).Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for _, name := range v.Names {
						local[name.Name] = true
					}
				}
			}
		}
		return true
	})
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !fields[id] && !local[id.Name] {
			names[id.Name] = true
		}
		return true
	})
	return names, selected
}

func TestFilesInReadingOrder(t *testing.T) {
	files := parseFiles(t)
	groups := make(map[string][]*ast.File)
	for name, f := range files {
		require.NotEmpty(t, group(name), "%s.go has no place in the reading order", name)
		groups[group(name)] = append(groups[group(name)], f)
	}
	// A method may have the name of a field, or of another type's method: only names of one type count.
	owners := make(map[string]int)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if st, ok := n.(*ast.StructType); ok {
				for _, field := range st.Fields.List {
					for _, name := range field.Names {
						owners[name.Name]++
					}
				}
			}
			return true
		})
		_, methods := declared(f)
		for _, m := range methods {
			owners[m]++
		}
	}
	for i, above := range readingOrder {
		for _, f := range groups[above] {
			names, selected := mentioned(f)
			for _, below := range readingOrder[i+1:] {
				if above == "keys" && below == "limits" { // a NameSpec has a Limit, and Limits have Names
					continue
				}
				for _, later := range groups[below] {
					laterNames, laterMethods := declared(later)
					for _, name := range laterNames {
						if names[name] {
							t.Errorf("%s.go mentions %s, which %s.go declares", above, name, below)
						}
					}
					for _, m := range laterMethods {
						if owners[m] == 1 && len(m) > 6 && selected[m] {
							t.Errorf("%s.go calls %s, which %s.go declares", above, m, below)
						}
					}
				}
			}
		}
	}
}

func TestImports(t *testing.T) {
	for name, f := range parseFiles(t) {
		for _, spec := range f.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			if only, ok := importers[path]; ok {
				require.Equal(t, only, group(name), "%s.go imports %s", name, path)
			}
			require.NotEqual(t, "net/http", path, "%s.go", name)
			own := strings.HasPrefix(path, "github.com/stint-go/stint/internal/")
			require.False(t, strings.HasPrefix(path, "github.com/") && !own, "%s.go imports %s", name, path)
		}
	}
}

// TestDependencies: who imports the package links bbolt, and what bbolt needs.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	for pkg := range strings.FieldsSeq(string(out)) {
		first, _, _ := strings.Cut(pkg, "/")
		if strings.Contains(first, ".") {
			require.Regexp(t, `^(github\.com/stint-go/stint(/internal/.*)?|go\.etcd\.io/bbolt(/.*)?|golang\.org/x/sys/.*)$`, pkg)
		}
	}
}

// TestRequirements holds go.mod to what it may require. Another one wants a reason, in docs/decisions.md.
func TestRequirements(t *testing.T) {
	content, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	var direct []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`).FindAllStringSubmatch(string(content), -1) {
		direct = append(direct, m[1])
	}
	slices.Sort(direct)
	require.Equal(t, []string{
		"github.com/rogpeppe/go-internal", "github.com/schollz/progressbar/v3", "github.com/spf13/cobra", "github.com/stretchr/testify",
		"go.etcd.io/bbolt", "golang.org/x/net", "golang.org/x/term", "gopkg.in/yaml.v3",
	}, direct)
}

package stint

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/stint-go/stint"

// allowedImports has, for each package, what its files that are not tests may
// import besides the standard library. Arrows point down: each package imports
// only those of lower layers. A name that ends in "/" stands for all packages
// below it.
var allowedImports = map[string][]string{
	"internal/prefetch":    {"golang.org/x/sys/"},
	"internal/clock":       {"golang.org/x/sys/"},
	"internal/queue":       {},
	"internal/groupcommit": {},
	"internal/table":       {"internal/prefetch"},
	"internal/format":      {},
	"internal/bloom":       {"internal/format", "internal/prefetch"},
	"internal/journal":     {"internal/format", "internal/prefetch"},
	"internal/bboltpage":   {"internal/format", "go.etcd.io/bbolt"},
	"internal/boltfile":    {"internal/bboltpage", "internal/format", "golang.org/x/sys/", "go.etcd.io/bbolt", "go.etcd.io/bbolt/errors"},
	"internal/boltstore": {"internal/boltfile", "internal/bboltpage", "internal/bloom", "internal/format",
		"internal/journal",
		"go.etcd.io/bbolt"},
	"internal/fsck": {"internal/boltfile", "internal/bboltpage", "internal/format", "internal/journal",
		"go.etcd.io/bbolt"},

	"internal/calendar": {},
	"internal/share":    {},
	"internal/spell":    {},
	"internal/idmap":    {},
	".": {"internal/boltstore", "internal/calendar", "internal/clock", "internal/format", "internal/groupcommit",
		"internal/idmap", "internal/queue", "internal/share",
		"internal/spell",
		"internal/table"},

	"internal/display":  {".", "golang.org/x/term"},
	"internal/chart":    {"internal/display"},
	"internal/replay":   {".", "internal/chart", "internal/display"},
	"internal/resp":     {},
	"internal/simulate": {".", "internal/chart", "internal/display", "gopkg.in/yaml.v3"},

	"internal/filecopy":    {"internal/bboltpage"},                                                                            // tests only
	"internal/testlength":  {},                                                                                                // tests only
	"internal/subprocess":  {},                                                                                                // tests only
	"internal/decidertest": {".", "internal/onetotal", "internal/settle", "github.com/stretchr/testify/", "gopkg.in/yaml.v3"}, // tests only
	"internal/rulestest":   {".", "httplimit", "internal/decidertest", "internal/lockout", "github.com/stretchr/testify/"},    // tests only
	"internal/modeltest":   {".", "internal/boltfile", "internal/boltstore", "github.com/stretchr/testify"},                   // tests only
	"idformat":             {".", "internal/spell", "golang.org/x/net/publicsuffix"},
	"limitsfile":           {".", "internal/calendar", "internal/share", "internal/spell", "gopkg.in/yaml.v3"},
	"internal/places":      {"."},                     // what doors share; not the root's
	"internal/clientid":    {".", "internal/lockout"}, // the same
	"internal/lockout":     {"."},                     // the same
	"internal/unspent":     {"."},                     // the same
	"internal/settle":      {"."},                     // the same
	"internal/onetotal":    {"."},                     // the same
	"httplimit": {".", "internal/clientid", "internal/lockout", "internal/onetotal", "internal/places", "internal/settle",
		"internal/unspent"},
	"netlimit":                {".", "internal/clientid", "internal/places"},
	"hostlimit":               {".", "hostlimit/internal/wire", "internal/boltstore", "golang.org/x/sys/"},
	"hostlimit/internal/wire": {"."},
	"httplimit/statuspage":    {".", "httplimit"},
	"cmd/stint": {".", "hostlimit", "httplimit/statuspage", "limitsfile", "internal/chart", "internal/display", "internal/fsck", "internal/replay", "internal/resp", "internal/simulate",
		"internal/spell",
		"github.com/spf13/", "github.com/schollz/", "go.etcd.io/bbolt", "golang.org/x/", "gopkg.in/yaml.v3"},
	"examples/": {".", "hostlimit", "httplimit", "httplimit/statuspage", "idformat", "limitsfile", "github.com/",
		"golang.org/x/"},
}

// allowedIn returns the entry of a package in allowedImports.
func allowedIn(pkg string) (imports []string, ok bool) {
	if imports, ok = allowedImports[pkg]; ok {
		return imports, true
	}
	for name, imports := range allowedImports {
		if strings.HasSuffix(name, "/") && strings.HasPrefix(pkg, name) {
			return imports, true
		}
	}
	return nil, false
}

// Each package imports what the table allows.
func TestImports(t *testing.T) {
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		pkg := path.Dir(filepath.ToSlash(file))
		allowed, ok := allowedIn(pkg)
		if !ok {
			t.Errorf("%s is in no package of the table: add %s, with what it may import", file, pkg)
			continue
		}
		for _, spec := range f.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if imported == module {
				imported = "."
			} else if own, ok := strings.CutPrefix(imported, module+"/"); ok {
				imported = own
			} else if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
				require.False(t, pkg == "." && imported == "net/http", "%s imports net/http", file)
				continue // the standard library
			}
			if !slices.ContainsFunc(allowed, func(a string) bool {
				return a == imported || strings.HasSuffix(a, "/") && strings.HasPrefix(imported, a)
			}) {
				t.Errorf("%s imports %s, which %s may not", file, imported, pkg)
			}
		}
	}
}

// goFiles returns the Go files of the module, without nested modules.
func goFiles(t *testing.T) (files []string) {
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			if strings.HasSuffix(name, ".go") {
				files = append(files, name)
			}
			return nil
		case name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		}
		if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != "." {
			return filepath.SkipDir
		}
		return nil
	}))
	return files
}

// TestDependencies: a program that imports the package links only bbolt, and
// what bbolt needs.
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

// TestTimeZones: the command brings the time zones, because many containers and
// Windows have none. Programs for small boards do not pay for them, so no package
// that programs import brings them.
func TestTimeZones(t *testing.T) {
	t.Parallel()
	brings := func(pkgs ...string) bool {
		out, err := exec.Command("go", append([]string{"list", "-deps"}, pkgs...)...).Output()
		require.NoError(t, err)
		return slices.Contains(strings.Fields(string(out)), "time/tzdata")
	}
	require.True(t, brings("./cmd/stint"))
	require.False(t, brings(".", "./limitsfile", "./idformat", "./httplimit/...", "./hostlimit", "./netlimit"))
}

// TestWalk holds the walk in docs/architecture.md to the code: each function is
// in the file that the walk names.
func TestWalk(t *testing.T) {
	doc, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	steps := regexp.MustCompile("(?m)^\\d+\\. `(\\S+\\.go): (?:(\\w+)\\.)?(\\w+)`").FindAllStringSubmatch(string(doc), -1)
	require.Greater(t, len(steps), 10)
	for _, step := range steps {
		file, receiver, function := step[1], step[2], step[3]
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		pattern := `(?m)^func ` + function + `\(`
		if receiver != "" {
			pattern = `(?m)^func \(\w+ \*?` + receiver + `(\[\w+\])?\) ` + function + `\(`
		}
		require.Regexp(t, pattern, string(source), "%s has no such function", file)
	}
}

// TestReadingOrder holds the table of the root's files in docs/architecture.md to
// the code: it has every file, and each function that a file uses from a later
// one.
func TestReadingOrder(t *testing.T) {
	doc, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(doc), "## The files of the root")
	table, _, _ = strings.Cut(table, "\n## ")
	rank, named := make(map[string]int), make(map[string]map[string]bool) // of files
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z_, ]+) \|.*\|(.*)\|$`).FindAllStringSubmatch(table, -1) {
		uses := make(map[string]bool) // shared by the files of a row
		for _, use := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(row[2], -1) {
			uses[use[1]] = false
		}
		for file := range strings.SplitSeq(row[1], ", ") {
			rank[file+".go"], named[file+".go"] = len(rank)+1, uses
		}
	}
	delete(rank, "files.go") // the head of the table
	files, info := checkTypes(t)
	for file := range rank {
		require.Contains(t, files, file, "of the table")
	}
	for file, syntax := range files {
		if file == "doc.go" {
			continue
		}
		require.NotZero(t, rank[file], "%s is not in the table", file)
		ast.Inspect(syntax, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			f, ok := info.Uses[id].(*types.Func)
			if !ok || f.Pkg() == nil || f.Pkg().Path() != module {
				return true
			}
			defined := ""
			for later, syntax := range files {
				if syntax.FileStart <= f.Pos() && f.Pos() < syntax.FileEnd {
					defined = later
				}
			}
			if name := functionName(f); rank[defined] > rank[file] && name != "shard.lock" {
				if _, ok := named[file][name]; !ok {
					t.Errorf("%s uses %s of %s, which the table does not say", file, name, defined)
				}
				named[file][name] = true
			}
			return true
		})
	}
	for file, uses := range named {
		for name, used := range uses {
			require.True(t, used, "%s does not use %s of a later file", file, name)
		}
	}
}

// functionName returns a method as Type.Method.
func functionName(f *types.Func) string {
	receiver := f.Signature().Recv()
	if receiver == nil {
		return f.Name()
	}
	of := receiver.Type()
	if p, ok := of.(*types.Pointer); ok {
		of = p.Elem()
	}
	if named, ok := of.(*types.Named); ok {
		return named.Obj().Name() + "." + f.Name()
	}
	return f.Name() // of an interface without a name
}

// checkTypes returns the files of the package, without tests, and what their
// identifiers mean.
func checkTypes(t *testing.T) (map[string]*ast.File, *types.Info) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}} {{range .GoFiles}}{{.}} {{end}}", ".").Output()
	require.NoError(t, err)
	exports, own := make(map[string]string), []string(nil)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if fields[0] == module {
			own = fields[2:]
		} else if len(fields) > 1 {
			exports[fields[0]] = fields[1]
		}
	}
	fset, files, all := token.NewFileSet(), make(map[string]*ast.File), []*ast.File(nil)
	for _, name := range own {
		files[name], err = parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		all = append(all, files[name])
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	_, err = config.Check(module, fset, all, info)
	require.NoError(t, err)
	return files, info
}

package docs_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
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
		"internal/journal", "internal/since",
		"go.etcd.io/bbolt"},
	"internal/fsck": {"internal/boltfile", "internal/bboltpage", "internal/format", "internal/journal",
		"go.etcd.io/bbolt"},

	"internal/since":      {},
	"internal/reciprocal": {},
	"internal/cache": {"internal/clock", "internal/format", "internal/groupcommit", "internal/queue", "internal/reciprocal",
		"internal/since", "internal/spell", "internal/table"},

	"internal/calendar": {"internal/spell"},
	"internal/share":    {},
	"internal/spell":    {},
	"internal/idmap":    {},
	"internal/events":   {},
	".": {"internal/boltstore", "internal/cache", "internal/calendar", "internal/clock", "internal/events", "internal/format", "internal/idmap",
		"internal/queue", "internal/reciprocal", "internal/share", "internal/spell", "internal/table"},

	"internal/display":  {".", "internal/calendar"},
	"internal/chart":    {"internal/display"},
	"internal/replay":   {".", "internal/chart", "internal/display"},
	"internal/resp":     {},
	"internal/simulate": {".", "internal/chart", "internal/display", "go.yaml.in/yaml/v4"},

	"internal/filecopy":   {"internal/bboltpage", "github.com/stretchr/testify/", "go.etcd.io/bbolt"}, // tests only
	"internal/testlength": {},                                                                         // tests only
	"internal/worlds": {".", "internal/boltfile", "internal/boltstore", "internal/filecopy", "internal/format", "internal/modeltest",
		"internal/table", "github.com/stretchr/testify/"}, // tests only
	"internal/subprocess":  {"github.com/stretchr/testify/"},                                                            // tests only
	"internal/decidertest": {".", "rules", "internal/testlength", "github.com/stretchr/testify/", "go.yaml.in/yaml/v4"}, // tests only
	"internal/rulestest": {".", "hostlimit", "httplimit", "rules", "internal/decidertest", "internal/testlength",
		"github.com/stretchr/testify/"}, // tests only
	"internal/modeltest":      {".", "internal/boltfile", "internal/boltstore", "github.com/stretchr/testify"}, // tests only
	"internal/dbfile":         {"."},                                                                           // for programs of this module that do not know a file's limits
	"internal/hold":           {"."},
	"storetest":               {"."},
	"idformat":                {".", "internal/spell", "golang.org/x/net/publicsuffix"},
	"limitsfile":              {".", "internal/calendar", "internal/share", "internal/spell", "go.yaml.in/yaml/v4"},
	"rules":                   {".", "internal/hold", "internal/spell"},
	"httplimit":               {".", "rules", "github.com/dunglas/httpsfv"},
	"netlimit":                {".", "rules"},
	"hostlimit":               {".", "hostlimit/internal/wire", "internal/boltfile", "internal/events", "golang.org/x/sys/"},
	"hostlimit/internal/wire": {"."},
	"httplimit/statuspage":    {".", "httplimit", "rules", "internal/display", "internal/hold", "internal/spell"},
	"cmd/stint": {".", "hostlimit", "httplimit/statuspage", "limitsfile", "internal/chart", "internal/dbfile", "internal/display", "internal/fsck", "internal/hold", "internal/replay", "internal/resp", "internal/simulate",
		"internal/spell",
		"github.com/coreos/go-systemd/", "github.com/gofrs/flock", "github.com/spf13/", "github.com/schollz/", "go.etcd.io/bbolt", "golang.org/x/", "go.yaml.in/yaml/v4"},
	"examples/": {".", "hostlimit", "httplimit", "httplimit/statuspage", "idformat", "limitsfile", "rules", "github.com/",
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
	t.Chdir("..")
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

// TestModules: Go chooses the version of each module by itself. So a module
// imports no internal package of another one, except in its tests, which are
// not built from another module.
func TestModules(t *testing.T) {
	t.Chdir("..")
	for _, dir := range []string{"bench", "caddylimit", "examples/migrate", "examples/redisclients", "grpclimit", "otellimit", "redislimit"} {
		own := path.Join(module, dir)
		require.FileExists(t, filepath.Join(dir, "go.mod"))
		require.NoError(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, spec := range f.Imports {
				imported := strings.Trim(spec.Path.Value, `"`)
				internal := strings.HasPrefix(imported, module) && strings.Contains(imported+"/", "/internal/")
				if internal && !strings.HasPrefix(imported, own+"/") {
					t.Errorf("%s imports %s of another module", name, imported)
				}
			}
			return nil
		}))
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
	t.Chdir("..")
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
	t.Chdir("..")
	brings := func(pkgs ...string) bool {
		out, err := exec.Command("go", append([]string{"list", "-deps"}, pkgs...)...).Output()
		require.NoError(t, err)
		return slices.Contains(strings.Fields(string(out)), "time/tzdata")
	}
	require.True(t, brings("./cmd/stint"))
	require.False(t, brings(".", "./limitsfile", "./idformat", "./httplimit/...", "./hostlimit", "./netlimit", "./rules"))
}

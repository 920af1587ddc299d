package stint

import (
	"go/parser"
	"go/token"
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
// import besides the standard library. Arrows point down: no internal package
// imports the root, and each package imports only those of lower layers. A name
// that ends in "/" stands for all packages below it.
var allowedImports = map[string][]string{
	"internal/prefetch":    {"golang.org/x/sys/"},
	"internal/clock":       {},
	"internal/queue":       {},
	"internal/groupcommit": {},
	"internal/table":       {"internal/prefetch"},
	"internal/format":      {},
	"internal/bloom":       {"internal/format", "internal/prefetch"},
	"internal/journal":     {"internal/format", "internal/prefetch"},
	"internal/bboltpage":   {"internal/format", "go.etcd.io/bbolt"},
	"internal/boltfile":    {"internal/bboltpage", "internal/format", "go.etcd.io/bbolt", "go.etcd.io/bbolt/errors"},
	"internal/boltstore": {"internal/boltfile", "internal/bboltpage", "internal/bloom", "internal/format",
		"internal/journal",
		"go.etcd.io/bbolt"},
	"internal/fsck": {"internal/boltfile", "internal/bboltpage", "internal/format", "internal/journal",
		"go.etcd.io/bbolt"},

	"internal/gcra":  {},
	"internal/share": {},
	"internal/spell": {},
	"internal/idmap": {},
	".": {"internal/boltstore", "internal/clock", "internal/format", "internal/gcra", "internal/groupcommit",
		"internal/idmap", "internal/queue", "internal/share",
		"internal/spell",
		"internal/table"},

	"internal/subprocess":  {},                                                                              // tests only
	"internal/modeltest":   {".", "internal/boltfile", "internal/boltstore", "github.com/stretchr/testify"}, // tests only
	"idformat":             {".", "internal/spell", "golang.org/x/net/publicsuffix"},
	"limitsfile":           {".", "internal/share", "internal/spell", "gopkg.in/yaml.v3"},
	"httplimit":            {"."},
	"hostlimit":            {".", "internal/boltstore", "golang.org/x/sys/"},
	"httplimit/statuspage": {".", "httplimit"},
	"cmd/stint": {".", "hostlimit", "idformat", "limitsfile", "internal/boltstore", "internal/fsck", "internal/spell",
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

// TestFileLengths: a reader can take in a file, and the root's files in order.
func TestFileLengths(t *testing.T) {
	own := 0
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		most := 500
		if filepath.Dir(name) == "." && !strings.HasSuffix(name, "_test.go") {
			most, own = 400, own+1
		}
		content, err := os.ReadFile(name)
		if n := strings.Count(string(content), "\n"); n > most {
			t.Errorf("%s has %d lines, want at most %d", name, n, most)
		}
		return err
	}))
	require.LessOrEqual(t, own, 15)
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

// TestRequirements holds go.mod to what it may require. Another module needs a
// reason, in docs/decisions.md.
func TestRequirements(t *testing.T) {
	content, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	var direct []string
	required := regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`)
	for _, m := range required.FindAllStringSubmatch(string(content), -1) {
		direct = append(direct, m[1])
	}
	slices.Sort(direct)
	require.Equal(t, []string{
		"github.com/rogpeppe/go-internal", "github.com/schollz/progressbar/v3", "github.com/spf13/cobra",
		"github.com/spf13/pflag", "github.com/stretchr/testify",
		"go.etcd.io/bbolt", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/term", "gopkg.in/yaml.v3",
	}, direct)
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

// TestWalk holds the walk in docs/architecture.md to the code: each function is
// in the file that the walk names, and there are at most 30 moves between files.
func TestWalk(t *testing.T) {
	doc, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	steps := regexp.MustCompile("(?m)^\\d+\\. `(\\S+\\.go): (?:(\\w+)\\.)?(\\w+)`").FindAllStringSubmatch(string(doc), -1)
	require.Greater(t, len(steps), 20)
	moves, last := 0, ""
	for _, step := range steps {
		file, receiver, function := step[1], step[2], step[3]
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		pattern := `(?m)^func ` + function + `\(`
		if receiver != "" {
			pattern = `(?m)^func \(\w+ \*?` + receiver + `(\[\w+\])?\) ` + function + `\(`
		}
		require.Regexp(t, pattern, string(source), "%s has no such function", file)
		if file != last {
			moves, last = moves+1, file
		}
	}
	t.Logf("%d moves between files", moves-1)
	require.LessOrEqual(t, moves-1, 30)
}

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
	"internal/gcra":       {"internal/calendar", "internal/queue", "internal/reciprocal"},
	"internal/cache": {"internal/clock", "internal/format", "internal/gcra", "internal/groupcommit", "internal/queue",
		"internal/since", "internal/spell", "internal/table"},

	"internal/calendar": {"internal/spell"},
	"internal/spell":    {},
	"internal/idmap":    {},
	"internal/events":   {},
	".": {"internal/boltstore", "internal/cache", "internal/calendar", "internal/clock", "internal/events", "internal/format", "internal/gcra", "internal/idmap",
		"internal/queue", "internal/spell"},

	"internal/display":  {".", "internal/calendar"},
	"internal/chart":    {"internal/display"},
	"internal/replay":   {".", "internal/chart", "internal/display", "internal/spell"},
	"internal/resp":     {},
	"internal/simulate": {".", "internal/chart", "internal/display", "gopkg.in/yaml.v3"},

	"internal/filecopy":   {"internal/bboltpage", "github.com/stretchr/testify/", "go.etcd.io/bbolt"}, // tests only
	"internal/testlength": {},                                                                         // tests only
	"internal/liveheap":   {},                                                                         // tests only
	"internal/worlds": {".", "internal/boltfile", "internal/boltstore", "internal/filecopy", "internal/format", "internal/modeltest",
		"internal/table", "github.com/stretchr/testify/"}, // tests only
	"internal/subprocess":  {"github.com/stretchr/testify/"},                                                                    // tests only
	"internal/sharestest":  {".", "shares", "internal/modeltest", "github.com/stretchr/testify/"},                               // tests only
	"internal/decidertest": {".", "rules", "shares", "internal/testlength", "github.com/stretchr/testify/", "gopkg.in/yaml.v3"}, // tests only
	"internal/rulestest": {".", "hostlimit", "httplimit", "rules", "shares", "internal/decidertest", "internal/testlength",
		"github.com/stretchr/testify/"}, // tests only
	"internal/modeltest": {".", "internal/boltfile", "internal/boltstore", "github.com/stretchr/testify"}, // tests only
	"internal/console":   {".", "internal/display", "golang.org/x/term"},
	"internal/source":    {".", "hostlimit", "internal/calendar", "internal/clock", "internal/console", "internal/dbfile", "internal/display", "internal/gcra", "internal/spell"},
	"internal/wholefile": {},
	"internal/maintain": {".", "internal/console", "internal/dbfile", "internal/display", "internal/fsck", "internal/replay", "internal/source",
		"internal/wholefile", "go.etcd.io/bbolt"},
	"internal/resp/resptest":  {"github.com/stretchr/testify/"}, // tests only
	"internal/serve":          {".", "hostlimit", "internal/boltfile", "internal/console", "internal/display", "internal/resp", "internal/source", "internal/status"},
	"internal/dbfile":         {"."}, // for programs of this module that do not know a file's limits
	"internal/levels":         {"."},
	"storetest":               {"."},
	"shares":                  {"."},
	"idformat":                {".", "internal/spell"},
	"limitsfile":              {".", "internal/calendar", "internal/spell", "gopkg.in/yaml.v3"},
	"rules":                   {".", "internal/spell"},
	"httplimit":               {".", "rules", "internal/spell", "github.com/dunglas/httpsfv"},
	"netlimit":                {".", "rules", "internal/spell", "internal/levels"},
	"hostlimit":               {".", "hostlimit/internal/wire", "internal/boltfile", "internal/events", "internal/levels", "golang.org/x/sys/"},
	"hostlimit/internal/wire": {"."},
	"internal/status":         {".", "rules"},
	"httplimit/statuspage":    {".", "httplimit", "rules", "internal/display", "internal/status"},
	"cmd/stint": {".", "hostlimit", "limitsfile", "internal/chart", "internal/console", "internal/display", "internal/maintain", "internal/replay", "internal/serve", "internal/simulate", "internal/source", "internal/spell", "internal/wholefile",
		"github.com/spf13/", "golang.org/x/term"},
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

// The command links no package that takes long to initialise and that only serve would
// use: each call in a script would wait for it.
func TestCommandDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../cmd/stint").Output()
	require.NoError(t, err)
	linked := strings.Fields(string(out))
	for _, pkg := range []string{"net/http", "html/template", "crypto/tls", "crypto/x509"} {
		require.NotContains(t, linked, pkg)
	}
}

// requirements has, for each module that a program can import and each that it requires
// directly, what it is for and why the code is not ours. Those of the command and of the
// tests reach a program that imports stint only as lines of go.mod.
var requirements = map[string]map[string]string{
	".": {
		"go.etcd.io/bbolt":                "the file",
		"gopkg.in/yaml.v3":                "limitsfile: YAML, with the line of each mistake",
		"golang.org/x/sys":                "the clock that counts while a machine sleeps, prefetching, and locks; bbolt needs it, too",
		"github.com/dunglas/httpsfv":      "httplimit: structured fields are a grammar of their own (RFC 9651)",
		"github.com/spf13/cobra":          "the command: subcommands, help, manual pages and completion for four shells",
		"github.com/spf13/pflag":          "the command: cobra's flags, whose errors it words anew",
		"golang.org/x/term":               "the command: the width of a terminal, on Windows, too",
		"github.com/rogpeppe/go-internal": "tests: testscript runs the command as users do",
		"github.com/stretchr/testify":     "tests: assertions",
	},
	"redislimit": {
		"github.com/redis/rueidis":    "the client that the program has",
		"github.com/stretchr/testify": "tests: assertions",
	},
	"grpclimit": {
		"google.golang.org/grpc":                    "the server whose calls it limits",
		"google.golang.org/genproto/googleapis/rpc": "the details of a denial, RetryInfo and QuotaFailure",
		"google.golang.org/protobuf":                "their durations",
		"github.com/stretchr/testify":               "tests: assertions",
	},
	"otellimit": {
		"go.opentelemetry.io/otel":            "the attributes of a metric",
		"go.opentelemetry.io/otel/metric":     "the instruments",
		"go.opentelemetry.io/otel/trace":      "the span of a request",
		"go.opentelemetry.io/otel/sdk":        "tests: the spans that were recorded",
		"go.opentelemetry.io/otel/sdk/metric": "tests: the metrics that were recorded",
		"github.com/stretchr/testify":         "tests: assertions",
	},
	"caddylimit": {
		"github.com/caddyserver/caddy/v2":     "the server; v2.9.0 is the first with a registry of metrics for each configuration",
		"github.com/prometheus/client_golang": "Caddy's metrics",
		"go.uber.org/zap":                     "Caddy's log",
		"github.com/stretchr/testify":         "tests: assertions",
	},
}

func TestRequirements(t *testing.T) {
	for dir, reasons := range requirements {
		content, err := os.ReadFile(filepath.Join("..", dir, "go.mod"))
		require.NoError(t, err)
		found := map[string]bool{}
		for line := range strings.Lines(string(content)) {
			words := strings.Fields(strings.TrimPrefix(line, "require "))
			if len(words) < 2 || !strings.HasPrefix(words[1], "v") || strings.Contains(line, "// indirect") || strings.HasPrefix(words[0], module) {
				continue
			}
			found[words[0]] = true
			if reasons[words[0]] == "" {
				t.Errorf("%s/go.mod requires %s: say in the table what it is for, or do without it", dir, words[0])
			}
		}
		for name := range reasons {
			if !found[name] {
				t.Errorf("%s/go.mod no longer requires %s", dir, name)
			}
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

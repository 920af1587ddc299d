// Command modproxy lays the modules of a release out as a module proxy: a
// folder that GOPROXY=file:///FOLDER serves as the published version will be.
//
//	modproxy VERSION TREE FOLDER
//
// TREE is the tree of the release. Each module in it that a program can
// require is released. RELEASING.md says how the tree is made.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const root = "github.com/stint-go/stint"

// unpublished lists the nested modules that only this repository uses. A path
// that ends in "/" stands for all modules below it.
var unpublished = []string{"bench", "tools", "examples/", "httplimit/conformance", "grpclimit/conformance", "otellimit/example", "caddylimit/cmd/", "cmd/"}

// A released module is one with a go.mod that programs may require.
type released struct {
	dir string // its folder, relative to the tree
	mod module.Version
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: modproxy VERSION TREE FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "modproxy:", err)
		os.Exit(1)
	}
}

// run releases the modules of the tree in the order in which they require each
// other, and prints the tag of each.
func run(version, tree, folder string) error {
	modules, err := find(version, tree)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := pin(m, modules, tree); err != nil {
			return fmt.Errorf("%s: %w", m.mod.Path, err)
		}
		if err := publish(m, tree, folder); err != nil {
			return fmt.Errorf("%s: %w", m.mod.Path, err)
		}
		fmt.Println(tag(m))
	}
	return nil
}

// find returns the modules to release. Fewer path elements come first, so the
// root comes before the modules that require it.
func find(version, tree string) (modules []released, err error) {
	err = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || path != tree && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.Name() != "go.mod" {
			return nil
		}
		dir, err := filepath.Rel(tree, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		for _, u := range unpublished {
			if dir == u || strings.HasSuffix(u, "/") && strings.HasPrefix(dir, u) {
				return nil
			}
		}
		m := released{dir: dir, mod: module.Version{Path: root, Version: version}}
		if dir != "." {
			m.mod.Path += "/" + dir
		}
		if nested := strings.Contains(dir, "/"); nested {
			return fmt.Errorf("%s is a module below another folder: list it as unpublished, or teach find its order", dir)
		}
		modules = append(modules, m)
		return nil
	})
	slices.SortFunc(modules, func(a, b released) int {
		return cmp.Or(cmp.Compare(len(a.dir), len(b.dir)), cmp.Compare(a.dir, b.dir))
	})
	slices.SortStableFunc(modules, func(a, b released) int { // the root first
		return cmp.Compare(min(1, len(a.dir)-1), min(1, len(b.dir)-1))
	})
	return modules, err
}

// pin writes the versions of released modules into the go.mod of m, and drops
// the replacements that a clone needs.
func pin(m released, modules []released, tree string) error {
	path := filepath.Join(tree, filepath.FromSlash(m.dir), "go.mod")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := modfile.Parse(path, content, nil)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(file.Replace) {
		if !strings.HasPrefix(r.Old.Path, root) {
			return fmt.Errorf("go.mod replaces %s: a released module may replace none", r.Old.Path)
		}
		if err := file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	for _, other := range modules {
		if slices.ContainsFunc(file.Require, func(r *modfile.Require) bool { return r.Mod.Path == other.mod.Path }) {
			if err := file.AddRequire(other.mod.Path, other.mod.Version); err != nil {
				return err
			}
		}
	}
	file.Cleanup()
	content, err = file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// publish writes the four files by which a proxy serves a version.
func publish(m released, tree, folder string) error {
	escaped, err := module.EscapePath(m.mod.Path)
	if err != nil {
		return err
	}
	dir := filepath.Join(folder, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	source := filepath.Join(tree, filepath.FromSlash(m.dir))
	gomod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{m.mod.Version, time.Unix(0, 0).UTC()})
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"list":                  []byte(m.mod.Version + "\n"),
		m.mod.Version + ".mod":  gomod,
		m.mod.Version + ".info": info,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	archive, err := os.Create(filepath.Join(dir, m.mod.Version+".zip"))
	if err != nil {
		return err
	}
	if err := zip.CreateFromDir(archive, m.mod, source); err != nil {
		archive.Close()
		return err
	}
	return archive.Close()
}

// tag returns the name that the version has in the repository.
func tag(m released) string {
	if m.dir == "." {
		return m.mod.Version
	}
	return m.dir + "/" + m.mod.Version
}

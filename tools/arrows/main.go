// Command arrows draws the structure of a package in numbers: which of its files
// uses which, and in which order of the files the fewest of these arrows run up.
// With -crossing it lists what another package uses of it.
//
//	go -C tools run ./arrows -C .. [-v] PACKAGE
//	go -C tools run ./arrows -C .. -crossing USER PACKAGE
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

var dir string

func main() {
	verbose := flag.Bool("v", false, "list the arrows that run up, with what they use")
	flag.StringVar(&dir, "C", ".", "run in this directory")
	user := flag.String("crossing", "", "list what this package uses of PACKAGE")
	flag.Parse()
	log.SetFlags(0)
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	pkg, err := load(cmp.Or(*user, flag.Arg(0)))
	if err != nil {
		log.Fatal("arrows: ", err)
	}
	if *user != "" {
		err = pkg.printCrossing(flag.Arg(0))
	} else {
		pkg.printArrows(*verbose)
	}
	if err != nil {
		log.Fatal("arrows: ", err)
	}
}

// loaded is a package with the meaning of its identifiers.
type loaded struct {
	path  string
	fset  *token.FileSet
	files []*ast.File
	uses  map[*ast.Ident]types.Object
	picks map[*ast.SelectorExpr]*types.Selection
}

// load reads a package without its tests.
func load(pattern string) (*loaded, error) {
	const form = "{{.ImportPath}}|{{.Export}}|{{.Dir}}|{{join .GoFiles \" \"}}"
	out, err := list("-export", "-deps", "-f", form, pattern)
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	var last []string // -deps lists the package itself last
	for line := range strings.Lines(string(out)) {
		last = strings.Split(strings.TrimSpace(line), "|")
		exports[last[0]] = last[1]
	}
	p := &loaded{path: last[0], fset: token.NewFileSet()}
	for _, name := range strings.Fields(last[3]) {
		f, err := parser.ParseFile(p.fset, filepath.Join(last[2], name), nil, 0)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, f)
	}
	info := &types.Info{
		Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection),
	}
	config := types.Config{Importer: importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	if _, err := config.Check(p.path, p.fset, p.files, info); err != nil {
		return nil, err
	}
	p.uses, p.picks = info.Uses, info.Selections
	return p, nil
}

// list returns what go list prints.
func list(args ...string) ([]byte, error) {
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir = dir
	out, err := c.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %s", exit.Stderr)
	}
	return out, err
}

func (p *loaded) fileOf(pos token.Pos) string { return filepath.Base(p.fset.Position(pos).Filename) }

// printArrows prints how many arrows there are, and the best order.
func (p *loaded) printArrows(verbose bool) {
	arrows := make(map[[2]string]map[string]bool) // from and to → what is used
	var files []string
	lines := 0
	for _, f := range p.files {
		from := p.fileOf(f.Pos())
		files = append(files, from)
		lines += p.fset.Position(f.FileEnd).Line - 1
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			used := p.uses[id]
			if used == nil || used.Pkg() == nil || used.Pkg().Path() != p.path || !isCall(used) {
				return true
			}
			if to := p.fileOf(used.Pos()); to != from {
				arrow := [2]string{from, to}
				if arrows[arrow] == nil {
					arrows[arrow] = make(map[string]bool)
				}
				arrows[arrow][used.Name()] = true
			}
			return true
		})
	}
	files = bestOrder(files, arrows)
	up := upward(files, arrows)
	fmt.Printf("%s: %d files, %d lines, %d arrows, %d up\n", p.path, len(files), lines, len(arrows), len(up))
	fmt.Println("from the bottom:", strings.ReplaceAll(strings.Join(files, " "), ".go", ""))
	if verbose {
		for _, arrow := range up {
			fmt.Printf("  %s → %s: %s\n", arrow[0], arrow[1], strings.Join(slices.Sorted(maps.Keys(arrows[arrow])), " "))
		}
	}
}

// isCall reports whether a use of an object is an arrow: it is a function, a
// method, a type or a variable of the package. Fields are part of their types.
func isCall(o types.Object) bool {
	if v, ok := o.(*types.Var); ok {
		return !v.IsField() && v.Parent() == v.Pkg().Scope()
	}
	_, isName := o.(*types.PkgName)
	return !isName
}

// upward returns the arrows from a file to a later one.
func upward(files []string, arrows map[[2]string]map[string]bool) (up [][2]string) {
	for i, from := range files {
		for _, to := range files[i+1:] {
			if arrow := [2]string{from, to}; arrows[arrow] != nil {
				up = append(up, arrow)
			}
		}
	}
	return up
}

// bestOrder moves one file after the other to where the fewest arrows run up,
// until no move makes them fewer.
func bestOrder(files []string, arrows map[[2]string]map[string]bool) []string {
	slices.Sort(files)
	best := len(upward(files, arrows))
	for better := true; better; {
		better = false
		for i := range files {
			for j := range files {
				moved := slices.Delete(slices.Clone(files), i, i+1)
				moved = slices.Insert(moved, j, files[i])
				if n := len(upward(moved, arrows)); n < best {
					files, best, better = moved, n, true
				}
			}
		}
	}
	return files
}

// printCrossing prints the names of another package that p uses.
func (p *loaded) printCrossing(pattern string) error {
	out, err := list(pattern)
	if err != nil {
		return err
	}
	of := strings.TrimSpace(string(out))
	names := make(map[string]int)
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if pick := p.picks[n]; pick != nil && pick.Obj().Pkg() != nil && pick.Obj().Pkg().Path() == of {
					names[receiverOf(pick)+"."+pick.Obj().Name()]++
				} else if used := p.uses[n.Sel]; pick == nil && used != nil && used.Pkg() != nil && used.Pkg().Path() == of {
					names[used.Name()]++
				}
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Printf("%4d %s\n", names[name], name)
	}
	fmt.Printf("%s uses %d names of %s\n", p.path, len(names), of)
	return nil
}

// receiverOf returns the name of the type that has the method or field.
func receiverOf(pick *types.Selection) string {
	of := pick.Recv()
	if f, ok := pick.Obj().(*types.Func); ok {
		of = f.Signature().Recv().Type()
	}
	if ptr, ok := of.(*types.Pointer); ok {
		of = ptr.Elem()
	}
	if named, ok := types.Unalias(of).(*types.Named); ok {
		return named.Obj().Name()
	}
	return "?"
}

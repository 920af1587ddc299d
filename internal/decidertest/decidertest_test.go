package decidertest

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each exported error of package stint has a case, or a reason for having none.
func TestExportedErrors(t *testing.T) {
	files, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != gotoken.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if !strings.HasPrefix(name.Name, "Err") {
						continue
					}
					found++
					require.Contains(t, exported, name.Name, "errors.go does not list it")
					if len(mistakes[name.Name]) == 0 && name.Name != "ErrDuplicateKey" {
						require.Contains(t, elsewhere, name.Name, "no case meets it")
					}
				}
			}
		}
	}
	require.Equal(t, len(exported), found)
}

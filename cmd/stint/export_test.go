package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// JSON would replace bytes that are not UTF-8, and make two labels one.
func TestExport(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	require.Equal(t, 0, runArgs(t, "allow", "--db", db, "--limit", "3/1h", "--name", "a\xff", "x").status)
	r := runArgs(t, "export", "--db", db)
	assert.Equal(t, 3, r.status)
	assert.Empty(t, r.stdout)
	succeeds(t, "limits", "set-names", "--db", db, "1=a")
	succeeds(t, "export", "--db", db)
}

// The header of a file may have all labels that there can be.
func TestImport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "many.jsonl")
	file, err := os.Create(path)
	require.NoError(t, err)
	w := bufio.NewWriter(file)
	fmt.Fprint(w, `{"stint":1,"names":{"1":"a"`)
	for i := 2; i < 65536; i++ {
		fmt.Fprintf(w, `,"%d":"NewOrdersPerAccount%d"`, i, i)
	}
	fmt.Fprint(w, "}}\n"+`{"name":"a","id":"x","tat":4000000000000000000}`+"\n")
	require.NoError(t, w.Flush())
	require.NoError(t, file.Close())
	succeeds(t, "import", "--dry-run", "--db", filepath.Join(t.TempDir(), "a.db"), path)
}

// A byte order mark in front of the first line is not part of it.
func TestImportByteOrderMark(t *testing.T) {
	export := write(t, "a.jsonl", "\ufeff"+`{"stint":1,"names":{"1":"a"}}`+"\n")
	succeeds(t, "import", "--dry-run", "--db", filepath.Join(t.TempDir(), "a.db"), export)
	keys := write(t, "keys.txt", "\ufeff1:alice 4000000000000000000\n")
	file, err := os.Open(keys)
	require.NoError(t, err)
	defer file.Close()
	r := runWith(t, file, "migrate", "redis", "--dry-run", "--db", filepath.Join(t.TempDir(), "b.db"), "1=Orders")
	assert.Equal(t, 0, r.status, r.stderr)
}

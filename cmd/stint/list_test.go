package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// list, without a Limiter, prints what a Limiter says, and does not change the
// file.
func TestList(t *testing.T) {
	db := filepath.Join(t.TempDir(), "stint.db")
	names := stint.Names{1: {Label: "b"}, 2: {Label: "a"}}
	limit := stint.Limit{Burst: 7, Count: 3, Period: 24 * time.Hour}
	limits, err := stint.NewLimits(names.WithLimits(map[stint.Name]stint.Limit{1: limit, 2: limit}))
	require.NoError(t, err)
	limiter, err := stint.Open(db, limits, nil)
	require.NoError(t, err)
	left := map[string]int64{}
	for i := range int64(7) {
		key := stint.Name(1).Key(string(rune('z' - i)))
		d, err := limiter.Spend(key, i)
		require.NoError(t, err)
		left[key.ID] = d.Remaining
	}
	require.NoError(t, errorOf(limiter.Hold(stint.Name(1).Key("x"), time.Now().Add(100*time.Hour))))
	require.NoError(t, errorOf(limiter.Hold(stint.Name(2).Key("full"), time.Now().Add(100*time.Hour))))
	require.NoError(t, limiter.Close())
	before, err := os.ReadFile(db)
	require.NoError(t, err)

	assert.Regexp(t, `^a  full  full, held for \S+\nb  t     full in \S+\nb  u     full in \S+\nb  v     full in \S+\n`+
		`b  w     full in \S+\nb  x     full in \S+, held for \S+\nb  y     full in \S+\n$`, succeeds(t, "list", "--db", db))

	r := runArgs(t, "list", "--db", db, "--limit", "3/1d", "--burst", "7", "--name", "b", "--json")
	lines := strings.SplitAfter(strings.TrimSuffix(r.stdout, "\n"), "\n")
	require.Len(t, lines, 6)
	for _, line := range lines {
		o := object(t, strings.TrimSuffix(line, "\n")+"\n")
		assert.EqualValues(t, left[o["id"].(string)], o["remaining"], line)
		assert.Equal(t, o["id"] == "x", o["held_ns"] != nil)
	}
	// The limit was made smaller: each bucket counts as an empty one of the new
	// limit.
	r = runArgs(t, "list", "--db", db, "--limit", "1/1h", "--name", "b")
	assert.Equal(t, 6, strings.Count(r.stdout, "  0 of 1 left, full in 1h"), r.stdout)

	assert.Equal(t, result{0, "", ""}, runArgs(t, "list", "--db", db, "--quiet"))
	after, err := os.ReadFile(db)
	require.NoError(t, err)
	assert.True(t, string(before) == string(after), "list changed the file")

	succeeds(t, "reset", "--db", db, "--name", "a", "full")
	assert.NotContains(t, runArgs(t, "list", "--db", db).stdout, "a  full", "reset ends a hold")
}

// A stint.Single limit has one bucket, with an empty id.
func TestListSharedBucket(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	line := `{"stint":1,"names":{"1":"everyone"}}` + "\n" + `{"name":"everyone","id":"","tat":4000000000000000000}` + "\n"
	require.Equal(t, 0, runWith(t, strings.NewReader(line), "import", "--db", db).status)
	assert.Regexp(t, `^everyone  ""  full in `, runArgs(t, "list", "--db", db).stdout)
	assert.Regexp(t, `^everyone  ""\n`, succeeds(t, "show", "--db", db, "--name", "everyone", ""))
	assert.Equal(t, 2, runArgs(t, "show", "--db", db, "").status, "as if from a variable that is not set")
	assert.Equal(t, 2, runArgs(t, "reset", "--db", db, "").status)
	assert.Equal(t, "reset  \"\"  full\n", runArgs(t, "reset", "--db", db, "--name", "everyone", "").stdout)
	const none = "stint: no buckets to show: full ones that are not held are left out\n"
	assert.Equal(t, result{0, "", none}, runArgs(t, "list", "--db", db))
	assert.Equal(t, result{0, "", none}, runArgs(t, "list", "--db", db, "--json"))
	assert.Equal(t, result{0, "", ""}, runArgs(t, "list", "--db", db, "--quiet"))
}

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }

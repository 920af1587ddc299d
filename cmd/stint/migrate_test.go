package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// Buckets of a Redis under a quota that follows the calendar: those that are full
// before the period ends are full, and later ones are empty. What the quota itself
// has used stays used.
func TestMigrateCalendar(t *testing.T) {
	now := time.Now().UTC()
	quota := fmt.Sprintf("3/day@%+03d:30", 12-now.Hour()) // it is about noon there
	limit, err := stint.ParseLimit(quota)
	require.NoError(t, err)
	_, end := limit.PeriodAt(now)
	flags := []string{"--db", filepath.Join(t.TempDir(), "q.db"), "--name", "Orders", "--limit", quota}
	command := func(name string, args ...string) string {
		t.Helper()
		r := runArgs(t, append(append([]string{name}, flags...), args...)...)
		require.Empty(t, r.stderr)
		return r.stdout
	}
	require.Contains(t, command("allow", "--cost", "2", "stays"), "1 of 3 left")
	require.Contains(t, command("allow", "--cost", "2", "later"), "1 of 3 left")

	var keys strings.Builder
	for id, full := range map[string]time.Time{
		"past": now.Add(-time.Hour), "today": now.Add(time.Hour), "end": end,
		"one": end.Add(1), "three": end.Add(3), "tomorrow": end.Add(time.Hour),
		"stays": now.Add(time.Hour), "later": end.Add(time.Hour),
	} {
		fmt.Fprintf(&keys, "1:%s\t%d\n", id, full.UnixNano())
	}
	r := runWith(t, strings.NewReader(keys.String()), "migrate", "redis", "--db", flags[1])
	require.Equal(t, "imported  6 buckets and 0 holds; 1 stay as they are in the file; 1 expired\n", r.stdout, r.stderr)
	for id, left := range map[string]int{
		"past": 3, "today": 3, "end": 3, "one": 2, "three": 0, "tomorrow": 0, "stays": 1, "later": 0,
	} {
		out := command("show", id)
		require.Contains(t, out, fmt.Sprintf("%d of 3 left", left), id)
		if left < 3 {
			require.Contains(t, out, "resets  at 00:00 "+strings.TrimPrefix(quota, "3/day@"), id)
		}
	}
	require.Regexp(t, `^allowed  today  2 of 3 left`, command("allow", "today"))
	require.Regexp(t, `^denied  tomorrow  0 of 3 left, resets at 00:00 `, command("allow", "tomorrow"))
	r = runProcess(t, "verify", "--db", flags[1])
	require.Regexp(t, `^sound`, r.stdout, r.stderr)
}

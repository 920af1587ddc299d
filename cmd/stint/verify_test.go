package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
)

// contents returns a hash of all that is in a file, and how many entries those are, read with nothing but bbolt.
func contents(t *testing.T, path string) (sum string, entries int) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	h := sha256.New()
	var add func(bucket *bolt.Bucket) error
	add = func(bucket *bolt.Bucket) error {
		return bucket.ForEach(func(k, v []byte) error {
			entries++
			fmt.Fprintf(h, "%d %d\n", len(k), len(v))
			h.Write(k)
			if len(v) > 1<<20 { // the log, which is empty in a snapshot: what is left in it means nothing
				return nil
			}
			h.Write(v)
			if v == nil {
				return add(bucket.Bucket(k))
			}
			return nil
		})
	}
	require.NoError(t, db.View(func(tx *bolt.Tx) error { return add(tx.Cursor().Bucket()) }))
	return string(h.Sum(nil)), entries
}

// largeFile makes a file of 100,000 buckets of three limits, some of which are in its journal, some holds, and free pages, as
// a program that was killed leaves it. It returns its content.
func largeFile(t *testing.T) []byte {
	path := filepath.Join(t.TempDir(), "large.db")
	store, err := stint.OpenBolt(path, stint.Names{1: {Label: "Orders"}, 2: {Label: "Logins"}, 300: {Label: "Everyone"}}, nil)
	require.NoError(t, err)
	defer store.Close()
	now := time.Now().UnixNano()
	var changes []stint.Change
	for i := range 100_000 {
		changes = append(changes, stint.Change{Key: stint.Name(1 + i%2).Key(fmt.Sprint("account-", i)), TAT: now + int64(time.Hour) + int64(i)})
	}
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	require.NoError(t, store.Save(changes))
	require.NoError(t, store.Compact())
	for i := range 50 {
		changes[i].TAT++
		changes = append(changes, stint.Change{Key: stint.Unknown.Key(changes[i].Key.String()), TAT: now + int64(time.Hour)})
	}
	require.NoError(t, store.Save(changes[:1000]))
	require.NoError(t, store.Save(append(changes[100_000:], stint.Change{Key: stint.Name(300).Key(""), TAT: now + int64(time.Hour)})))
	var killed bytes.Buffer
	_, err = store.Snapshot(&killed)
	require.NoError(t, err)
	return killed.Bytes()
}

// TestVerifyFindsFlips flips one byte of the file, anywhere in it, and has verify look at it, until 500 were found. Of each that
// was not found bbolt has to read the same from the file as before.
func TestVerifyFindsFlips(t *testing.T) {
	want := 500
	if testing.Short() {
		want = 10
	}
	t.Setenv(runMain, "1") // for the process that verify starts
	sound := largeFile(t)
	path := filepath.Join(t.TempDir(), "stint.db")
	require.NoError(t, os.WriteFile(path, sound, 0o600))
	require.Regexp(t, `^sound  \S+  100\d\d\d buckets, \d+ entries in the journal\n$`, runArgs(t, "verify", path).stdout)
	before, entries := contents(t, path)
	require.Greater(t, entries, 100_000)

	r := rand.New(rand.NewPCG(3, 4))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	found, harmless, kinds := 0, 0, map[string]int{}
	for found < want {
		at, flip := r.IntN(len(sound)), byte(1+r.IntN(255))
		_, err := file.WriteAt([]byte{sound[at] ^ flip}, int64(at))
		require.NoError(t, err)
		switch res := runArgs(t, "verify", path); res.status {
		case statusDone:
			harmless++
			after, _ := contents(t, path)
			require.Equal(t, before, after, "byte %d, flipped by %#x, changed what is read", at, flip)
		case statusFailed:
			found++
			require.Contains(t, res.stderr, "is not sound")
			require.True(t, strings.HasPrefix(res.stdout, "wrong  "), res.stdout)
			kinds[kindOf(res.stdout)]++
		default:
			t.Fatal(res)
		}
		_, err = file.WriteAt(sound[at:at+1], int64(at))
		require.NoError(t, err)
	}
	t.Logf("%d bytes: %d flips found %v, %d in what is not in use", len(sound), found, kinds, harmless)

	// All of a TAT's bytes, in all of their bits.
	key := []byte("account-47110")
	require.Equal(t, 1, bytes.Count(sound, key), "in no page that is free by now")
	at := bytes.Index(sound, key) + len(key)
	for i := range 8 {
		for bit := range 8 {
			if testing.Short() && bit != i {
				continue
			}
			_, err := file.WriteAt([]byte{sound[at+i] ^ 1<<bit}, int64(at+i))
			require.NoError(t, err)
			res := runArgs(t, "verify", path)
			require.Equal(t, statusFailed, res.status)
			require.Contains(t, res.stdout, "does not come to its sum")
			_, err = file.WriteAt(sound[at+i:at+i+1], int64(at+i))
			require.NoError(t, err)
		}
	}
	assert.Equal(t, statusDone, runArgs(t, "verify", path).status)
	assert.Greater(t, kinds["sum"], want/10)
}

func kindOf(findings string) string {
	for _, kind := range []string{"sum", "page", "bbolt"} {
		if strings.Contains(findings, kind) {
			return kind
		}
	}
	return "other"
}

// TestVerifyAsksBbolt: what only bbolt's own check finds, and that it may end the process that it runs in.
func TestVerifyAsksBbolt(t *testing.T) {
	t.Setenv(runMain, "1")
	path := filepath.Join(t.TempDir(), "stint.db")
	require.NoError(t, runArgsErr(t, "allow", "--limit", "3/1h", "alice", "--db", path))
	require.NoError(t, askBbolt(t.Context(), path))
	garbage := write(t, "garbage.db", strings.Repeat("not a bbolt file\n", 1000))
	err := askBbolt(t.Context(), garbage)
	require.ErrorIs(t, err, stint.ErrCorrupt)
	require.ErrorContains(t, err, "bbolt's check ended with exit status")
}

func runArgsErr(t *testing.T, args ...string) error {
	if r := runArgs(t, args...); r.status != 0 {
		return errors.New(r.stderr)
	}
	return nil
}

package stint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

func allOf(t testing.TB, s *BoltStore) map[Key]int64 {
	all := make(map[Key]int64)
	names, err := s.allNames()
	require.NoError(t, err)
	for _, name := range slices.AppendSeq(names, maps.Keys(s.Names())) {
		for key, tat := range tatsOf(collect(t, s.All(name))) {
			all[key] = tat
		}
	}
	return all
}

// TestSalvageOfASoundFile: all of it, its journal included.
func TestSalvageOfASoundFile(t *testing.T) {
	to := filepath.Join(t.TempDir(), "new.db")
	for _, path := range []string{goldenFile, makeBolt(t, Names{3: {Label: "Three"}})} {
		os.Remove(to)
		v, err := Salvage(path, to, nil, nil)
		require.NoError(t, err)
		require.Empty(t, v.Lost)
		found, err := verify(t, to)
		require.NoError(t, err)
		require.Equal(t, Verified{Buckets: v.Buckets}, found)
		from, err := OpenBolt(path, nil, &BoltOptions{ReadOnly: true})
		require.NoError(t, err)
		s := openBolt(t, to, nil)
		require.Equal(t, from.Names(), s.Names())
		require.Equal(t, allOf(t, from), allOf(t, s))
		require.NoError(t, from.Close())
		require.NoError(t, s.Close())
	}
	_, err := Salvage(goldenFile, to, nil, nil)
	require.ErrorIs(t, err, fs.ErrExist, "nothing is overwritten")
	_, err = Salvage(filepath.Join(t.TempDir(), "none.db"), to, nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestSalvageOfNoneOfOurs: to repair what is sound, and of another format, would be to lose it.
func TestSalvageOfNoneOfOurs(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "sound.db")
	_, err := Salvage(dir, to, nil, nil)
	require.ErrorContains(t, err, "it is a directory")
	require.NotErrorIs(t, err, ErrCorrupt)

	newer := makeBolt(t, Names{1: {Label: "one"}}, Change{Key{1, "a"}, 1})
	edit(t, newer, func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, bigEndian(2)) })
	_, err = Salvage(newer, to, nil, nil)
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, newer+": format 2, and this version reads 1")

	for name, content := range map[string][]string{"empty.db": nil, "other.db": {"users", "sessions"}} {
		foreign := filepath.Join(dir, name)
		db, err := bolt.Open(foreign, 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.Update(func(tx *bolt.Tx) error {
			for _, bucket := range content {
				if _, err := tx.CreateBucket([]byte(bucket)); err != nil {
					return err
				}
			}
			return nil
		}))
		require.NoError(t, db.Close())
		_, err = Salvage(foreign, to, nil, nil)
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, "not one of stint's")
	}
	require.NoFileExists(t, to)
}

// TestSalvageWithoutAPage loses what is in the pages that are damaged, and nothing else.
func TestSalvageWithoutAPage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "buckets.db")
	s := openBolt(t, path, Names{1: {Label: "One"}, 2: {Label: "Two"}})
	var changes []Change
	for i := range 20_000 {
		changes = append(changes, Change{Key{Name(1 + i%2), fmt.Sprintf("id%05d", i)}, 1<<60 + int64(i)})
	}
	require.NoError(t, s.append(changes))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.append([]Change{{Key{1, "id00000"}, 7}, {Key{1, "new"}, 8}, {Key{2, "id00001"}, 0}}))
	want := allOf(t, s)
	abandon(t, s)
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	some := false
	for i := range 60 {
		content := append([]byte(nil), sound...)
		for range 1 + i%3 {
			page := 2 + r.IntN(len(content)/pageSize-2)
			for j := range 64 {
				content[page*pageSize+j] ^= byte(r.IntN(256))
			}
		}
		if i%10 == 0 { // or a page to which two lead
			content = append(content[:0], sound...)
			branches := pagesOf(content).of(t, path, branchPage)
			at := int(branches[r.IntN(len(branches))])*pageSize + pageHeader + 8
			copy(content[at+pageElement*(1+r.IntN(2)):][:8], content[at:])
		}
		damagedPath, to := filepath.Join(dir, "damaged.db"), filepath.Join(dir, "new.db")
		os.Remove(to)
		require.NoError(t, os.WriteFile(damagedPath, content, 0o600))
		v, err := Salvage(damagedPath, to, nil, nil)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			continue
		}
		after, err := os.ReadFile(damagedPath)
		require.NoError(t, err)
		require.Equal(t, content, after)
		_, err = verify(t, to)
		require.NoError(t, err)
		n := openBolt(t, to, nil)
		got := allOf(t, n)
		require.NoError(t, n.Close())
		require.EqualValues(t, len(got), v.Buckets)
		if len(v.Lost) == 0 {
			require.Equal(t, want, got)
			continue
		}
		some = some || len(got) > len(want)*9/10 && len(got) < len(want)
		for key, tat := range got {
			if tat != want[key] && key.ID != "id00000" && key.ID != "id00001" { // of which the journal may be lost
				require.Equal(t, want[key], tat, key)
			}
		}
	}
	require.True(t, some, "a page was lost, and the others were not")
}

// TestSalvageOfAShortFile finds what is in the pages that are there.
func TestSalvageOfAShortFile(t *testing.T) {
	dir := t.TempDir()
	path := makeBolt(t, Names{1: {Label: "One"}})
	const n = 20_000
	for i := range 4 {
		var changes []Change
		for j := range n / 4 {
			changes = append(changes, Change{Key{1, fmt.Sprintf("id%05d", i*n/4+j)}, 1 << 60})
		}
		edit(t, path, func(tx *bolt.Tx) error { return putHome(tx, nil, slices.Values(changes)) })
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	short, to := filepath.Join(dir, "short.db"), filepath.Join(dir, "new.db")
	require.NoError(t, os.WriteFile(short, content[:usedPages(t, path)-3*pageSize], 0o600)) // without what the last transaction wrote last
	_, err = OpenBolt(short, nil, nil)
	require.ErrorIs(t, err, ErrCorrupt)
	v, err := Salvage(short, to, nil, nil)
	require.NoError(t, err)
	require.Greater(t, v.Buckets, int64(n/4))
	require.NotEmpty(t, v.Lost)
	_, err = verify(t, to)
	require.NoError(t, err)
}

// TestSalvageWithoutTheRoot finds what there was a transaction ago.
func TestSalvageWithoutTheRoot(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "One"}}, Change{Key{1, "a"}, 1}, Change{Key{1, "b"}, 2})
	edit(t, path, func(tx *bolt.Tx) error { return putHome(tx, nil, slices.Values([]Change{{Key{1, "b"}, 3}})) })
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	m, err := readMeta(file)
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, pageSize), int64(m.root)*pageSize)
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), "new.db")
	v, err := Salvage(path, to, nil, nil)
	require.NoError(t, err)
	require.Len(t, v.Lost, 1)
	require.ErrorContains(t, v.Lost[0], "what the last transaction changed")
	s := openBolt(t, to, nil)
	require.Equal(t, map[Key]int64{{1, "a"}: 1, {1, "b"}: 2}, allOf(t, s))
	require.Equal(t, map[Name]string{1: "One"}, s.Names())
}

// TestSalvageDropsWhatMakesNoSense: an entry at a time.
func TestSalvageDropsWhatMakesNoSense(t *testing.T) {
	path := makeBolt(t, Names{6: {Label: "Six"}}, Change{Key{6, "a"}, 1}, Change{Key{6, "b"}, 2}, Change{Key{Unknown, "6:a"}, 3})
	edit(t, path, func(tx *bolt.Tx) error {
		six := tx.Bucket([]byte("6"))
		require.NoError(t, six.Put([]byte("short"), []byte("x")))
		require.NoError(t, six.Put([]byte("zero"), bigEndian(0)))
		_, err := six.CreateBucket([]byte("bucket"))
		require.NoError(t, err)
		require.NoError(t, tx.Bucket(holdsBucket).Put([]byte("nothing"), bigEndian(1)))
		require.NoError(t, tx.Bucket(metaBucket).Bucket(namesBucket).Delete([]byte("6")))
		require.NoError(t, tx.Bucket(journalBucket).Put(bigEndian(1), []byte("not a record")))
		_, err = tx.CreateBucket([]byte("else"))
		return err
	})
	to := filepath.Join(t.TempDir(), "new.db")
	v, err := Salvage(path, to, nil, nil)
	require.NoError(t, err)
	require.Len(t, v.Lost, 7)
	_, err = verify(t, to)
	require.NoError(t, err)
	s := openBolt(t, to, nil)
	require.Equal(t, map[Name]string{6: "name 6"}, s.Names())
	require.Equal(t, map[Key]int64{{6, "a"}: 1, {6, "b"}: 2, {Unknown, "6:a"}: 3}, allOf(t, s))
}

// Salvage replaces no file, even where the file system has no links.
func TestSalvageWithoutLinks(t *testing.T) {
	defer func(was func(old, name string) error) { link = was }(link)
	link = func(old, name string) error {
		return &os.LinkError{Op: "link", Old: old, New: name, Err: errors.ErrUnsupported}
	}
	path := makeBolt(t, nil, Change{Key{Unknown, "1:a"}, 1})
	to := filepath.Join(t.TempDir(), "salvaged.db")
	salvaged, err := Salvage(path, to, nil, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, salvaged.Buckets)
	before, err := os.ReadFile(to)
	require.NoError(t, err)
	_, err = Salvage(makeBolt(t, nil), to, nil, nil)
	require.ErrorIs(t, err, fs.ErrExist)
	after, err := os.ReadFile(to)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	require.Len(t, listDir(t, filepath.Dir(to)), 1)
}

// A label that is made up for one that was lost is no other's.
func TestSalvagedLabels(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "name 2"}, 2: {Label: "b"}}, Change{Key{1, "x"}, 1 << 60}, Change{Key{2, "y"}, 1 << 60})
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Bucket(namesBucket).Delete([]byte("2")) })
	to := filepath.Join(t.TempDir(), "new.db")
	_, err := Salvage(path, to, nil, nil)
	require.NoError(t, err)
	require.Equal(t, map[Name]string{1: "name 2", 2: "name 2?"}, openBolt(t, to, nil).Names())
}

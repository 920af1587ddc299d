package stint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	fileformat "github.com/stint-go/stint/internal/format"
)

const pageSize = 4096

// damagedStart is when the files that are to be damaged were written.
var damagedStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	damagedPartly Name = 1 // 3 of 10 spent
	damagedEmpty  Name = 2 // all spent
)

var damagedNames = Names{damagedPartly: {Label: "Partly"}, damagedEmpty: {Label: "Empty", Limit: Unlimited}}

func damagedLimits(t testing.TB) *Limits {
	return limitsOf(t, damagedNames, map[Name]Limit{damagedPartly: PerDay(10), damagedEmpty: PerDay(10)})
}

func damagedKey(i int) Key { return (damagedPartly + Name(i%2)).Key(fmt.Sprintf("%0*d", 6+i%7, i)) }

func damagedOptions() *Options {
	return &Options{Now: func() time.Time { return damagedStart }, FlushInterval: time.Hour, LockTimeout: 10 * time.Second}
}

// writeSound makes a file of n buckets, in the tree, the journal and the log,
// with a hold and with free pages. It returns what a killed process leaves.
func writeSound(t testing.TB, n int) []byte {
	t.Helper()
	path := storePath(t)
	s := openBolt(t, path, damagedNames)
	var changes []Change
	for i := range n {
		key := damagedKey(i)
		spent := 3 * PerDay(10).Interval()
		if key.Name == damagedEmpty {
			spent = PerDay(10).Tolerance()
		}
		changes = append(changes, Change{key, damagedStart.Add(spent).UnixNano()})
	}
	home, journal := changes[:n-n/10], changes[n-n/10:]
	for part := range slices.Chunk(home, n/4+1) {
		require.NoError(t, s.Save(part))
		require.NoError(t, s.Compact()) // applies the journal
	}
	require.NoError(t, s.Save([]Change{{holdKey(damagedKey(0)), damagedStart.Add(time.Hour).UnixNano()}}))
	for range 3 {
		require.NoError(t, s.Save(changes[:1]))
	}
	for part := range slices.Chunk(journal, 500) {
		require.NoError(t, s.Save(part))
	}
	for range 2 * pageSize / fileformat.LogBlock { // the loss of the last saves looks like a crash: these say nothing new
		require.NoError(t, s.Save(journal[:1]))
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return content
}

// damagedErrors are those that a damaged file may be.
var damagedErrors = []error{ErrCorrupt, ErrFormat, ErrNameMismatch}

// lifeOf opens a file of n buckets, decides on each of them, flushes, compacts
// and closes, and says what came of it. What must not be is in capitals.
func lifeOf(t testing.TB, path string, n int) (outcome string) {
	first := "" // the error that came first
	note := func(when string, err error) bool {
		if err == nil || first != "" {
			return err == nil
		}
		i := slices.IndexFunc(damagedErrors, func(e error) bool { return errors.Is(err, e) })
		if i < 0 {
			first = when + ": UNNAMED ERROR " + err.Error()
		} else {
			first = when + ": " + strings.TrimPrefix(damagedErrors[i].Error(), "stint: ")
		}
		return false
	}
	l, err := Open(path, damagedLimits(t), damagedOptions())
	if !note("open", err) {
		return first
	}
	different := 0
	for i := range n {
		key := damagedKey(i)
		d, err := l.Spend(key, 1)
		switch {
		case !note("decide", err):
			require.Zero(t, d)
		case d.RetryAfter > PerDay(10).Tolerance() || d.Remaining < 0 || d.Remaining > 10 || d.Allowed != (d.RetryAfter == 0):
			return fmt.Sprintf("BEYOND THE CLAMP: %+v", d)
		case i == 0 && (d.Allowed || d.RetryAfter != time.Hour):
			different++
		case i == 0:
		case key.Name == damagedEmpty && d.Allowed, key.Name == damagedPartly && d.Remaining != 6:
			different++
		}
	}
	note("flush", l.Flush())
	note("compact", l.store.(*BoltStore).Compact())
	for range l.Buckets(damagedPartly) {
	}
	note("health", l.Health())
	note("close", l.Close())
	if l, err = Open(path, damagedLimits(t), damagedOptions()); note("reopen", err) {
		note("reclose", l.Close())
	}
	switch {
	case first != "":
		return first
	case different > 2: // an id that changed, a hold that moved
		return "decided differently on many"
	case different > 0:
		return "decided differently"
	}
	return "harmless"
}

// Whatever was done to a file, there is no panic and no hang, an error has a
// name, and no bucket is further behind than its limit allows.
func TestDamagedFile(t *testing.T) {
	const buckets = 1_500
	sound := writeSound(t, buckets)
	used := len(bytes.TrimRight(sound, "\x00"))/pageSize*pageSize + pageSize
	every := func(step, sample int) int { // all of them, or some
		if !long {
			step *= sample
		}
		return step
	}
	rnd := rand.New(rand.NewPCG(1, 50))
	for _, c := range []struct {
		name  string
		step  int
		loses bool // it may decide differently
		edit  func(b []byte, at int) []byte
	}{
		{"flipped byte", every(pageSize/4, 24), true, func(b []byte, at int) []byte {
			b[at+rnd.IntN(pageSize/4)] ^= byte(1 + rnd.IntN(255))
			return b
		}},
		{"zero page", every(pageSize, 17), false, func(b []byte, at int) []byte { clear(b[at:][:pageSize]); return b }},
		{"garbage page", every(pageSize, 17), false, func(b []byte, at int) []byte {
			for i := range pageSize {
				b[at+i] = byte(rnd.Uint32())
			}
			return b
		}},
		{"truncated", every(512, 100), false, func(b []byte, at int) []byte { return b[:at+512] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			outcomes := make(map[string]int)
			for at := 0; at < used; at += c.step {
				path := storePath(t)
				require.NoError(t, os.WriteFile(path, c.edit(bytes.Clone(sound), at), 0o600))
				o := lifeOf(t, path, buckets)
				require.NotRegexp(t, "[A-Z]{3,}", o, "at %d", at)
				require.NotContains(t, o, "on many", "at %d", at)
				require.False(t, !c.loses && strings.Contains(o, "differently"), "at %d: %s", at, o)
				outcomes[o]++
			}
			for _, o := range slices.Sorted(maps.Keys(outcomes)) {
				t.Logf("%6d  %s", outcomes[o], o)
			}
		})
	}
	path := storePath(t)
	require.NoError(t, os.WriteFile(path, sound, 0o600))
	require.Equal(t, "harmless", lifeOf(t, path, buckets))
}

// No byte of the newer meta page in which a bit flips brings back what was spent
// at Synced.
func TestFlippedMeta(t *testing.T) {
	path := storePath(t)
	limits := limitsOf(t, damagedNames, map[Name]Limit{damagedPartly: {Burst: 10, Count: 1, Period: 24 * time.Hour, Durability: Synced}})
	key := damagedPartly.Key("a")
	l, err := Open(path, limits, damagedOptions())
	require.NoError(t, err)
	defer l.Close()
	for range 10 { // the first two make transactions, the others go to the log
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	meta := 0
	if binary.NativeEndian.Uint64(sound[64:]) < binary.NativeEndian.Uint64(sound[pageSize+64:]) {
		meta = pageSize
	}
	for at := range 96 {
		image := bytes.Clone(sound)
		image[meta+at] ^= 1 << (at * 5 % 8)
		path := storePath(t)
		require.NoError(t, os.WriteFile(path, image, 0o600))
		l, err := Open(path, limits, damagedOptions())
		if at >= 16 && at < 80 {
			require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
			continue
		}
		require.NoError(t, err, "what nobody reads")
		d, err := l.Check(key, 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.NoError(t, l.Close())
	}
}

// Open says what is wrong with a file. Recover sets a damaged file of stint's
// aside, and no other.
func TestRecover(t *testing.T) {
	other := func(change func(tx *bolt.Tx) error) func(path string) {
		return func(path string) { edit(t, path, change) }
	}
	small := writeSound(t, 20)
	sound := func(change func(tx *bolt.Tx) error) func(path string) {
		return func(path string) {
			require.NoError(t, os.WriteFile(path, small, 0o600))
			edit(t, path, change)
		}
	}
	write := func(content string) func(path string) {
		return func(path string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	}
	meta := func(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket(fileformat.MetaBucket) }
	names := func(tx *bolt.Tx) *bolt.Bucket { return meta(tx).Bucket(fileformat.NamesBucket) }
	options := func(o *bolt.Options) func(path string) {
		return func(path string) {
			db, err := bolt.Open(path, 0o600, o)
			require.NoError(t, err)
			require.NoError(t, db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("meta")); return err }))
			require.NoError(t, db.Close())
		}
	}
	zeroed := func(pages ...int) func(path string) {
		return func(path string) {
			b := bytes.Clone(small)
			for _, page := range pages {
				clear(b[page*pageSize:][:pageSize])
			}
			require.NoError(t, os.WriteFile(path, b, 0o600))
		}
	}
	garbage := make([]byte, 100_000)
	for i := range garbage {
		garbage[i] = byte(rand.Uint32())
	}
	noBolt := "not a bbolt file; if stint wrote it, its beginning was overwritten: restore it from a backup"
	for _, c := range []struct {
		name  string
		make  func(path string)
		err   error
		aside bool // with Recover
		want  string
	}{
		{"empty", write(""), ErrCorrupt, true, "it is empty; remove it to start anew"},
		{"one byte", write("x"), ErrFormat, false, noBolt},
		{"a text", write(strings.Repeat("not a database\n", 1000)), ErrFormat, false, noBolt},
		{"a JPEG", write("\xFF\xD8\xFF\xE0\x00\x10JFIF\x00" + strings.Repeat("\x7F", 50_000)), ErrFormat, false, noBolt},
		{"a SQLite database", write("SQLite format 3\x00\x10\x00" + strings.Repeat("\x00", 8190)), ErrFormat, false, noBolt},
		{"random bytes", write(string(garbage)), ErrFormat, false, noBolt},
		{"a beginning of zeros", zeroed(0, 1), ErrFormat, false, noBolt},
		{"the first and the root page are zeros", zeroed(0, 2, 3, 4, 5, 6, 7, 8), ErrCorrupt, true, ""},
		{"the second and the root page are zeros", zeroed(1, 2, 3, 4, 5, 6, 7, 8), ErrCorrupt, true, ""},
		{"cut to less than two pages", write(string(small[:5000])), ErrCorrupt, true, "the file is shorter than it says: 5000 bytes, want 8192"},
		{"cut to half", write(string(small[:len(small)/2/pageSize*pageSize])), ErrCorrupt, true, "the file is shorter than it says"},
		{"another program's", other(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("accounts")); return err }), ErrFormat, false, "not one of stint's"},
		{"another program's, with a bucket of that name", options(nil), ErrFormat, false, "not one of stint's"},
		{"a newer format", sound(func(tx *bolt.Tx) error { return meta(tx).Put(fileformat.FormatKey, fileformat.BigEndian(2)) }), ErrFormat, false,
			"format 2, and this version reads 1"},
		{"a format that is no number", sound(func(tx *bolt.Tx) error { return meta(tx).Put(fileformat.FormatKey, []byte("one")) }), ErrCorrupt, true, ""},
		{"other names", sound(func(tx *bolt.Tx) error { return names(tx).Put([]byte("1"), []byte("Else")) }), ErrNameMismatch, false,
			`name 1 is "Else" in the file, and declared as "Partly"`},
		{"no names", sound(func(tx *bolt.Tx) error { return meta(tx).DeleteBucket(fileformat.NamesBucket) }), ErrCorrupt, true, "names table"},
		{"a name that is no number", sound(func(tx *bolt.Tx) error { return names(tx).Put([]byte("70000"), []byte("Else")) }), ErrCorrupt, true, "names table"},
		{"no journal", sound(func(tx *bolt.Tx) error { return tx.DeleteBucket(fileformat.JournalBucket) }), ErrCorrupt, true, "journal"},
		{"a journal record that is none", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(fileformat.JournalBucket).Put(fileformat.BigEndian(1<<40), []byte("record"))
		}), ErrCorrupt, true, "checksum"},
		{"a hold on nothing", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(fileformat.HoldsBucket).Put([]byte("nothing"), fileformat.BigEndian(1<<62))
		}), ErrCorrupt, true, "hold"},
		{"pages of another size", options(&bolt.Options{PageSize: 8192}), ErrFormat, false, "pages of 8192 bytes"},
		{"no list of free pages", options(&bolt.Options{PageSize: pageSize, NoFreelistSync: true}), ErrFormat, false, "without a list of free pages"},
		{"a directory", func(path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, nil, false, "not a file"},
		{"a directory that is not there", func(path string) { require.NoError(t, os.Remove(filepath.Dir(path))) }, fs.ErrNotExist, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "in", "stint.db")
			require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
			c.make(path)
			before, _ := os.ReadFile(path)
			_, err := Open(path, damagedLimits(t), damagedOptions())
			require.Error(t, err)
			require.ErrorContains(t, err, c.want)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
			}
			if c.want == "hold" { // which is met when the file is open, and its journal applied by Close
				before, _ = os.ReadFile(path)
			} else {
				require.ErrorContains(t, err, path)
			}
			o := damagedOptions()
			events := make(chan Event, 10)
			o.Recover, o.OnEvent = true, func(e Event) { events <- e }
			l, err := Open(path, damagedLimits(t), o)
			if !c.aside {
				require.Error(t, err)
				after, _ := os.ReadFile(path)
				require.True(t, bytes.Equal(before, after), "it is left as it was")
				return
			}
			require.NoError(t, err)
			e := <-events
			require.Equal(t, FileSetAside, e.Kind)
			require.ErrorIs(t, e.Err, ErrCorrupt)
			require.Regexp(t, `stint\.db\.corrupt-\d{8}T\d{6}\.\d{9}Z$`, e.Path)
			aside, err := os.ReadFile(e.Path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, aside) || c.want == "hold")
			key := damagedPartly.Key("new")
			d, err := l.Spend(key, 10)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.NoError(t, l.Close())
			l, err = Open(path, damagedLimits(t), damagedOptions())
			require.NoError(t, err)
			d, err = l.Spend(key, 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "the new file remembers")
			require.NoError(t, l.Close())
		})
	}
}

// Damage that comes while the file is open is an error of each call that meets
// it, says what is wrong, and lets go of the lock when the file is closed.
func TestDamageMetLater(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(path string) error
		want   string
	}{
		"truncated":             {func(path string) error { return os.Truncate(path, 2*pageSize) }, "the file is shorter than it says: 8192 bytes, want "},
		"cut to nearly nothing": {func(path string) error { return os.Truncate(path, 1) }, "the file is shorter than it says: 1 bytes, want "},
		"zeros": {func(path string) error {
			b, err := os.ReadFile(path)
			clear(b[2*pageSize:])
			file, openErr := os.OpenFile(path, os.O_WRONLY, 0)
			if err = errors.Join(err, openErr); err == nil {
				_, err = file.WriteAt(b, 0)
				err = errors.Join(err, file.Close())
			}
			return err
		}, ""},
	} {
		for _, swept := range []bool{false, true} { // then no page is checked any more
			if swept && name == "zeros" {
				continue
			}
			t.Run(fmt.Sprint(name, "/swept ", swept), func(t *testing.T) {
				path := storePath(t)
				require.NoError(t, os.WriteFile(path, writeSound(t, 2_000), 0o600))
				l, err := Open(path, damagedLimits(t), damagedOptions())
				require.NoError(t, err)
				for range 10 {
					if swept {
						require.NoError(t, l.store.Maintain(time.Unix(0, 1)))
					}
				}
				require.NoError(t, c.damage(path))
				for i := 1; i < 100; i++ { // the first one is in the journal, which is in memory
					d, err := l.Spend(damagedKey(i), 1)
					require.ErrorIs(t, err, ErrCorrupt)
					require.ErrorContains(t, err, c.want)
					require.Zero(t, d)
					require.False(t, l.Allow(damagedKey(i)))
				}
				require.Positive(t, l.Stats().Limits[damagedPartly].Errors)
				require.ErrorIs(t, l.Health(), ErrCorrupt)
				l.Close()
				_, err = Open(path, damagedLimits(t), damagedOptions())
				require.NotErrorIs(t, err, ErrLocked)
			})
		}
	}
}

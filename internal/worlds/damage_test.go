package worlds

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/filecopy"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

const pageSize = 4096

// damagedStart is when the files were written, before they were damaged.
var damagedStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	damagedPartly stint.Name = 1 // 3 of 10 spent
	damagedEmpty  stint.Name = 2 // all spent
)

var damagedNames = stint.Names{damagedPartly: {Label: "Partly"}, damagedEmpty: {Label: "Empty", Limit: stint.Unlimited}}

func damagedLimits(t testing.TB) *stint.Limits {
	daily := stint.PerDay(10)
	return LimitsOf(t, damagedNames, map[stint.Name]stint.Limit{damagedPartly: daily, damagedEmpty: daily})
}

func damagedKey(i int) stint.Key {
	return (damagedPartly + stint.Name(i%2)).Key(fmt.Sprintf("%0*d", 6+i%7, i))
}

func damagedOptions() *stint.Options {
	return &stint.Options{Now: func() time.Time { return damagedStart }, FlushInterval: time.Hour, LockTimeout: 10 * time.Second}
}

// writeSound makes a file of n buckets, in the tree, the journal and the log,
// with a hold and with free pages. It returns what a killed process leaves.
func writeSound(t testing.TB, n int) []byte {
	t.Helper()
	path := Path(t)
	s := OpenFile(t, path, damagedNames, nil)
	var changes []stint.Change
	for i := range n {
		key := damagedKey(i)
		spent := 3 * stint.PerDay(10).Interval()
		if key.Name == damagedEmpty {
			spent = stint.PerDay(10).Tolerance()
		}
		changes = append(changes, stint.Change{Key: key, TAT: damagedStart.Add(spent).UnixNano()})
	}
	home, journal := changes[:n-n/10], changes[n-n/10:]
	for part := range slices.Chunk(home, n/4+1) {
		require.NoError(t, s.Save(part))
		require.NoError(t, s.Compact()) // applies the journal
	}
	require.NoError(t, s.Save([]stint.Change{{Key: holdKey(damagedKey(0)), TAT: damagedStart.Add(time.Hour).UnixNano()}}))
	for range 3 {
		require.NoError(t, s.Save(changes[:1]))
	}
	for part := range slices.Chunk(journal, 500) {
		require.NoError(t, s.Save(part))
	}
	for range 2 * pageSize / fileformat.LogBlock { // a loss of these looks like a crash, and changes no bucket
		require.NoError(t, s.Save(journal[:1]))
	}
	content := filecopy.Read(t, path)
	require.NoError(t, s.Close())
	return content
}

// damagedErrors are the errors that a damaged file may lead to.
var damagedErrors = []error{stint.ErrCorrupt, stint.ErrFormat, stint.ErrNameMismatch}

// lifeOf opens a file of n buckets, decides on each of them, flushes, compacts
// and closes. It returns the first error by its name, or a summary of the
// decisions.
func lifeOf(t testing.TB, path string, n int) (outcome string) {
	note := func(when string, err error) bool {
		if err != nil && outcome == "" {
			i := slices.IndexFunc(damagedErrors, func(e error) bool { return errors.Is(err, e) })
			require.GreaterOrEqual(t, i, 0, "%s: an error without a name: %v", when, err)
			outcome = when + damagedErrors[i].Error()
		}
		return err == nil
	}
	store, err := boltstore.Open(path, labels(damagedNames), boltstore.Options{LockTimeout: LongLock, MaxResident: 1 << 20})
	if !note("open", err) {
		return outcome
	}
	file := File{store}
	l, err := stint.New(file, damagedLimits(t), damagedOptions())
	if !note("open", err) {
		file.Close()
		return outcome
	}
	different := 0
	for i := range n {
		key := damagedKey(i)
		d, err := l.Spend(key, 1)
		if !note("decide", err) {
			require.Zero(t, d)
			continue
		}
		requireSound(t, d)
		require.LessOrEqual(t, d.ResetAfter, stint.PerDay(10).Tolerance())
		switch {
		case i == 0 && d.RetryAfter != time.Hour, // it is held
			i > 0 && key.Name == damagedEmpty && d.Allowed,
			i > 0 && key.Name == damagedPartly && d.Remaining != 6:
			different++
		}
	}
	note("flush", l.Flush())
	note("upkeep", file.Maintain(l.Now()))
	note("compact", file.Compact())
	for range l.Buckets(damagedPartly) {
	}
	note("health", l.Health())
	note("close", l.Close())
	if l, err = stint.Open(path, damagedLimits(t), damagedOptions()); note("reopen", err) {
		note("reclose", l.Close())
	}
	switch {
	case outcome != "":
		return outcome
	case different > 2: // more than an id that changed, or a hold that moved
		return "many different"
	case different > 0:
		return "different"
	}
	return "harmless"
}

// TestDamagedFile damages a file in many places. There is no panic, every error
// has a name, and no bucket has more or fewer tokens than its limit allows.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	const buckets = 1_500
	sound := writeSound(t, buckets)
	require.Equal(t, "harmless", lifeOf(t, filecopy.New(t, sound), buckets))
	used := len(bytes.TrimRight(sound, "\x00"))/pageSize*pageSize + pageSize
	rnd := rand.New(rand.NewPCG(1, 50))
	for _, c := range []struct {
		name         string
		step, sample int
		outcome      string // besides errors
		edit         func(b []byte, at int) []byte
	}{
		{"flipped byte", pageSize / 4, 24, "^harmless|^different", func(b []byte, at int) []byte {
			b[at+rnd.IntN(pageSize/4)] ^= byte(1 + rnd.IntN(255))
			return b
		}},
		{"zero page", pageSize, 17, "^harmless", func(b []byte, at int) []byte { clear(b[at:][:pageSize]); return b }},
		{"garbage page", pageSize, 17, "^harmless", func(b []byte, at int) []byte {
			for i := range pageSize {
				b[at+i] = byte(rnd.Uint32())
			}
			return b
		}},
		{"truncated", 512, 100, "^harmless", func(b []byte, at int) []byte { return b[:at+512] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch {
			case !testlength.Long:
				c.step *= c.sample
			case testing.Short():
				c.step *= 5
			}
			outcomes := make(map[string]int)
			for at := 0; at < used; at += c.step {
				o := lifeOf(t, filecopy.New(t, c.edit(bytes.Clone(sound), at)), buckets)
				require.Regexp(t, c.outcome+"|stint: ", o, "at %d", at)
				outcomes[o]++
			}
			t.Log(outcomes)
		})
	}
}

// testRecover opens files that are not sound. Open says what is wrong. Recover
// sets a damaged file of stint's aside, and no other file.
func testRecover(t *testing.T) {
	small := writeSound(t, 20)
	garbage := make([]byte, 100_000)
	for i := range garbage {
		garbage[i] = byte(rand.Uint32())
	}
	write := func(content string) func(path string) {
		return func(path string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	}
	zeroed := func(pages ...int) func(path string) {
		b := bytes.Clone(small)
		for _, page := range pages {
			clear(b[page*pageSize:][:pageSize])
		}
		return write(string(b))
	}
	changed := func(change func(tx *bolt.Tx) error) func(path string) {
		return func(path string) {
			write(string(small))(path)
			filecopy.Edit(t, path, change)
		}
	}
	foreign := func(bucket string, o *bolt.Options) func(path string) {
		return func(path string) {
			db, err := bolt.Open(path, 0o600, o)
			require.NoError(t, err)
			require.NoError(t, db.Update(func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket([]byte(bucket))
				return err
			}))
			require.NoError(t, db.Close())
		}
	}
	top := func(name []byte) func(tx *bolt.Tx) *bolt.Bucket {
		return func(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket(name) }
	}
	put := func(bucket func(tx *bolt.Tx) *bolt.Bucket, key, value []byte) func(path string) {
		return changed(func(tx *bolt.Tx) error { return bucket(tx).Put(key, value) })
	}
	meta := top(fileformat.MetaBucket)
	names := func(tx *bolt.Tx) *bolt.Bucket { return meta(tx).Bucket(fileformat.NamesBucket) }
	noBolt := "not a bbolt file; if stint wrote it, its beginning was overwritten: restore it from a backup"
	for _, c := range []struct {
		name  string
		make  func(path string)
		err   error
		aside bool // with SetAsideCorrupt
		want  string
	}{
		{"empty", write(""), stint.ErrCorrupt, true, "it is empty; remove it to start anew"},
		{"one byte", write("x"), stint.ErrFormat, false, noBolt},
		{"a text", write(strings.Repeat("not a database\n", 1000)), stint.ErrFormat, false, noBolt},
		{"random bytes", write(string(garbage)), stint.ErrFormat, false, noBolt},
		{"a beginning of zeros", zeroed(0, 1), stint.ErrFormat, false, noBolt},
		{"zeros in the first and the root page", zeroed(0, 2, 3, 4, 5, 6, 7, 8), stint.ErrCorrupt, true, ""},
		{"zeros in the second and the root page", zeroed(1, 2, 3, 4, 5, 6, 7, 8), stint.ErrCorrupt, true, ""},
		{"less than two pages", write(string(small[:5000])), stint.ErrCorrupt, true,
			"the file is shorter than it says: 5000 bytes, want 8192"},
		{"half of it", write(string(small[:len(small)/2/pageSize*pageSize])), stint.ErrCorrupt, true,
			"the file is shorter than it says"},
		{"another program's", foreign("accounts", nil), stint.ErrFormat, false, "not one of stint's"},
		{"another program's meta bucket", foreign("meta", nil), stint.ErrFormat, false, "not one of stint's"},
		{"pages of another size", foreign("meta", &bolt.Options{PageSize: 8192}), stint.ErrFormat, false, "pages of 8192 bytes"},
		{"no list of free pages", foreign("meta", &bolt.Options{PageSize: pageSize, NoFreelistSync: true}), stint.ErrFormat, false,
			"without a list of free pages"},
		{"a newer format", put(meta, fileformat.FormatKey, fileformat.BigEndian(2)), stint.ErrFormat, false,
			"format 2, and this version reads 1"},
		{"a format that is no number", put(meta, fileformat.FormatKey, []byte("one")), stint.ErrCorrupt, true, ""},
		{"other names", put(names, []byte("1"), []byte("Else")), stint.ErrNameMismatch, false,
			`name 1 is "Else" in the file, and declared as "Partly"`},
		{"a name that is no number", put(names, []byte("70000"), []byte("Else")), stint.ErrCorrupt, true, "names table"},
		{"no names", changed(func(tx *bolt.Tx) error { return meta(tx).DeleteBucket(fileformat.NamesBucket) }),
			stint.ErrCorrupt, true, "names table"},
		{"no journal", changed(func(tx *bolt.Tx) error { return tx.DeleteBucket(fileformat.JournalBucket) }), stint.ErrCorrupt,
			true, "journal"},
		{"garbage in the journal", put(top(fileformat.JournalBucket), fileformat.BigEndian(1<<40), []byte("record")),
			stint.ErrCorrupt, true, "checksum"},
		{"a hold on nothing", put(top(fileformat.HoldsBucket), []byte("nothing"), fileformat.BigEndian(1<<62)),
			stint.ErrCorrupt, true, "hold"},
		{"a directory", func(path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, nil, false, "not a file"},
		{"no such directory", func(path string) { require.NoError(t, os.Remove(filepath.Dir(path))) }, fs.ErrNotExist,
			false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "in", "stint.db")
			require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
			c.make(path)
			before, _ := os.ReadFile(path)
			_, err := stint.Open(path, damagedLimits(t), damagedOptions())
			require.ErrorContains(t, err, c.want)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
			}
			if c.want != "hold" { // it names the hold, which New finds and not OpenBolt
				require.ErrorContains(t, err, path)
			}
			after, _ := os.ReadFile(path)
			require.True(t, bytes.Equal(before, after), "the file stays as it was")
			o := damagedOptions()
			events := make(chan stint.Event, 10)
			o.SetAsideCorrupt, o.OnEvent = true, func(e stint.Event) { events <- e }
			l, err := stint.Open(path, damagedLimits(t), o)
			if !c.aside {
				require.Error(t, err)
				after, _ = os.ReadFile(path)
				require.True(t, bytes.Equal(before, after), "the file stays as it was")
				return
			}
			require.NoError(t, err)
			e := <-events
			require.Equal(t, stint.FileSetAside, e.Kind)
			require.ErrorIs(t, e.Err, stint.ErrCorrupt)
			require.Regexp(t, `stint\.db\.corrupt-\d{8}T\d{6}\.\d{9}Z$`, e.Path)
			require.True(t, bytes.Equal(before, filecopy.Read(t, e.Path)))
			d, err := l.Spend(damagedPartly.Key("new"), 10)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.NoError(t, l.Close())
			l, err = stint.Open(path, damagedLimits(t), damagedOptions())
			require.NoError(t, err)
			require.False(t, l.Allow(damagedPartly.Key("new")))
			require.NoError(t, l.Close())
		})
	}
}

// TestRefusedFile: a file that is refused keeps each of its bytes, whoever refuses
// it and however far it came: also the log and the journal that a crash left, and
// the labels, although the program has one more.
func TestRefusedFile(t *testing.T) {
	t.Parallel()
	const late stint.Name = 9
	names := stint.Names{damagedPartly: {Label: "Partly"}, damagedEmpty: {Label: "Empty", Limit: stint.Unlimited},
		late: {Label: "Late", Limit: stint.Unlimited}}
	limits := func(names stint.Names) *stint.Limits {
		return LimitsOf(t, names, map[stint.Name]stint.Limit{damagedPartly: stint.PerDay(10)})
	}
	wrong := stint.Names{damagedPartly: {Label: "Partly"}, late: {Label: "Empty", Limit: stint.Unlimited}} // 2 in the file
	hold := stint.Unknown.Key("no key")
	tat := damagedStart.Add(time.Hour).UnixNano()
	// crashed returns what a crash leaves of a file with 50 buckets, after a change.
	crashed := func(change func(s File)) []byte {
		path := Path(t)
		s := OpenFile(t, path, damagedNames, nil)
		for i := range 50 {
			if i == 25 {
				change(s)
			}
			require.NoError(t, s.Save([]stint.Change{{Key: damagedKey(i), TAT: tat}}))
		}
		require.NoError(t, s.Save(nil))
		return filecopy.Read(t, path)
	}
	badHold := crashed(func(s File) { require.NoError(t, s.Save([]stint.Change{{Key: hold, TAT: tat}})) })
	badClock := crashed(func(s File) { require.NoError(t, s.SaveClock([]byte("no record"))) })
	sound := crashed(func(File) {})
	damagedLog := bytes.Clone(sound)
	log := bytes.LastIndex(damagedLog, []byte(damagedKey(40).ID))
	damagedLog[log] ^= 1
	opens := map[string]func(path string) error{
		"Open": func(path string) error {
			_, err := stint.Open(path, limits(names), damagedOptions())
			return err
		},
		"OpenBolt and New": func(path string) error {
			s, err := stint.OpenBolt(path, nil, nil)
			if err != nil {
				return err
			}
			_, err = stint.New(s, limits(names), damagedOptions())
			require.NoError(t, s.Close())
			return err
		},
		"SetAsideCorrupt": func(path string) error {
			o := damagedOptions()
			o.SetAsideCorrupt = true
			l, err := stint.Open(path, limits(names), o)
			if err != nil {
				return err
			}
			require.NoError(t, l.Close())
			found, err := filepath.Glob(path + ".corrupt-*")
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.NoError(t, os.Rename(found[0], path))
			return stint.ErrCorrupt
		},
		"ReadOnly": func(path string) error {
			s, err := stint.OpenBolt(path, names, &stint.BoltOptions{ReadOnly: true})
			if err != nil {
				return err
			}
			for range s.All(damagedPartly) {
			}
			return s.Close()
		},
	}
	for _, c := range []struct {
		file    string
		content []byte
		names   stint.Names // of the program, if not the names above
		err     error
	}{
		{"a damaged hold", badHold, nil, stint.ErrCorrupt},
		{"a damaged record of the clock", badClock, nil, stint.ErrCorrupt},
		{"a damaged log", damagedLog, nil, stint.ErrCorrupt},
		{"half of it", sound[:len(sound)/2], nil, stint.ErrCorrupt},
		{"empty", nil, nil, stint.ErrCorrupt},
		{"a text", []byte("not a database"), nil, stint.ErrFormat},
		{"other names", sound, wrong, stint.ErrNameMismatch},
	} {
		for how, open := range opens {
			t.Run(c.file+"/"+how, func(t *testing.T) {
				defer func(was stint.Names) { names = was }(names)
				if c.names != nil {
					names = c.names
				}
				path := filecopy.New(t, c.content)
				err := open(path)
				if how != "ReadOnly" && !(how == "SetAsideCorrupt" && c.err != stint.ErrCorrupt) {
					require.ErrorIs(t, err, c.err)
				}
				require.True(t, bytes.Equal(c.content, filecopy.Read(t, path)), "the file stays as it was")
			})
		}
	}
}

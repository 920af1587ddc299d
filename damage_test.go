package stint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

var flips = flag.Int("flips", 0, "flip so many random bytes of a file of 100,000 buckets, one at a time")

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

func damagedKey(i int) Key {
	return (damagedPartly + Name(i%2)).Key(fmt.Sprintf("%0*d", 6+i%7, i))
}

func damagedOptions() *Options {
	return &Options{Now: func() time.Time { return damagedStart }, FlushInterval: time.Hour, LockTimeout: 10 * time.Second}
}

// writeSound makes a sound file of n buckets, in the tree and in the journal, with a hold and with pages that are free.
func writeSound(t testing.TB, path string, n int) {
	t.Helper()
	s, err := OpenBolt(path, damagedNames, nil)
	require.NoError(t, err)
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
	require.NoError(t, s.append(home))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.Save([]Change{{holdKey(damagedKey(0)), damagedStart.Add(time.Hour).UnixNano()}}))
	require.NoError(t, s.checkpoint())
	for part := range slices.Chunk(journal, 500) {
		require.NoError(t, s.append(part))
	}
	for range 2 * pageSize / logBlock { // the loss of the last saves looks like a crash: these say nothing new
		require.NoError(t, s.append(journal[:1]))
	}
	copied, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, os.WriteFile(path, copied, 0o600))
}

// lifeOf opens a file of n buckets, decides on each of them, flushes, compacts and closes, and says what came of it.
func lifeOf(t testing.TB, path string, n int) (outcome string) {
	named := func(where string, err error) string {
		for _, e := range []error{ErrCorrupt, ErrFormat, ErrNameMismatch} {
			if errors.Is(err, e) {
				return where + ": " + strings.TrimPrefix(e.Error(), "stint: ")
			}
		}
		return where + ": UNNAMED ERROR " + err.Error()
	}
	l, err := Open(path, damagedLimits(t), damagedOptions())
	if err != nil {
		return named("open", err)
	}
	first := "" // the error that came first
	note := func(where string, err error) {
		if err != nil && first == "" {
			first = named(where, err)
		}
	}
	different := 0
	for i := range n {
		key := damagedKey(i)
		d, err := l.Spend(key, 1)
		note("decide", err)
		switch {
		case err != nil && d != (Decision{}):
			return "AN ERROR AND A DECISION"
		case err != nil:
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
	if s, ok := l.store.(*BoltStore); ok {
		note("compact", s.Compact())
	}
	if n < 10_000 {
		for range l.Buckets(damagedPartly) {
		}
	}
	note("health", l.Health())
	note("close", l.Close())
	if n < 10_000 {
		if l, err = Open(path, damagedLimits(t), damagedOptions()); err != nil {
			note("reopen", err)
		} else {
			note("reclose", l.Close())
		}
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

// A damagedCase is what is done to a sound file.
type damagedCase struct {
	Truncate int64   // to so many bytes; 0: not
	Patches  []patch // in place
}

type patch struct {
	At    int64
	Bytes []byte
}

func (c damagedCase) apply(sound []byte) []byte {
	b := slices.Clone(sound)
	for _, p := range c.Patches {
		copy(b[p.At:], p.Bytes)
	}
	if c.Truncate > 0 {
		b = b[:c.Truncate]
	}
	return b
}

const damagedChild = "STINT_DAMAGED" // the environment variable that makes a child of the test binary

// TestDamagedChild is not a test, but the process that is made to open damaged files.
func TestDamagedChild(t *testing.T) {
	in := os.Getenv(damagedChild)
	if in == "" {
		t.Skip("for children only")
	}
	var job damagedJob
	b, err := os.ReadFile(in)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &job))
	sound, err := os.ReadFile(job.Sound)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "damaged.db")
	for i, c := range job.Cases {
		require.NoError(t, os.WriteFile(path, c.apply(sound), 0o600))
		fmt.Printf("@%d %s\n", i, lifeOf(t, path, job.Buckets))
		require.NoError(t, os.RemoveAll(path))
	}
}

type damagedJob struct {
	Sound   string
	Buckets int
	Cases   []damagedCase
}

// outcomes runs the cases in child processes. One that ends its process, or hangs, has that as its outcome.
func (job damagedJob) outcomes(t *testing.T) []string {
	exe, err := os.Executable()
	require.NoError(t, err)
	out := make([]string, 0, len(job.Cases))
	for len(out) < len(job.Cases) {
		rest := job
		rest.Cases = job.Cases[len(out):][:min(25, len(job.Cases)-len(out))]
		in := filepath.Join(t.TempDir(), "job.json")
		b, err := json.Marshal(rest)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(in, b, 0o600))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(len(rest.Cases))*20*time.Second)
		cmd := exec.CommandContext(ctx, exe, "-test.run=^TestDamagedChild$", "-test.count=1", "-test.timeout=0")
		cmd.Env = append(os.Environ(), damagedChild+"="+in)
		cmd.WaitDelay = 10 * time.Second
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err = cmd.Run()
		hung := ctx.Err() != nil
		cancel()
		done := len(out)
		for lines := bufio.NewScanner(&stdout); lines.Scan(); {
			if number, outcome, ok := strings.Cut(lines.Text(), " "); ok && number == "@"+strconv.Itoa(len(out)-done) {
				out = append(out, outcome)
			}
		}
		if err != nil && len(out)-done < len(rest.Cases) {
			reason, _, _ := strings.Cut(stderr.String(), "\n")
			outcome := fmt.Sprintf("THE PROCESS ENDED: %v: %s", err, reason)
			if hung {
				outcome = "A HANG"
			}
			t.Logf("%+v: %s", job.Cases[len(out)], outcome)
			out = append(out, outcome)
		} else {
			require.NoError(t, err, stderr.String())
		}
	}
	return out
}

// check requires every outcome to be a named error, or one that the design allows, and logs how many there were of each.
func checkOutcomes(t *testing.T, outcomes []string) {
	counts := make(map[string]int)
	for _, o := range outcomes {
		counts[o]++
	}
	for _, o := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%6d  %s", counts[o], o)
	}
	for o := range counts {
		require.NotRegexp(t, "[A-Z]{3,}", o)
	}
}

// A file of 100,000 buckets, of which one byte is another than was written.
func TestFlippedByte(t *testing.T) {
	n, buckets := *flips, 100_000
	if n == 0 {
		n, buckets = 50, 4_000
	}
	job := damagedJob{Sound: filepath.Join(t.TempDir(), "sound.db"), Buckets: buckets}
	writeSound(t, job.Sound, buckets)
	require.Equal(t, "harmless", lifeOf(t, copyOf(t, job.Sound), buckets))
	sound, err := os.ReadFile(job.Sound)
	require.NoError(t, err)
	t.Logf("%d bytes of %d buckets", len(sound), buckets)
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	for range n {
		at := rnd.Int64N(int64(len(sound)))
		job.Cases = append(job.Cases, damagedCase{Patches: []patch{{at, []byte{sound[at] ^ byte(1+rnd.IntN(255))}}}})
	}
	outcomes := job.outcomes(t)
	checkOutcomes(t, outcomes)
	if *flips == 0 { // among so many there may be one that has a branch lead to another sound page
		require.NotContains(t, outcomes, "decided differently on many")
	}
}

func copyOf(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), filepath.Base(path))
	require.NoError(t, os.WriteFile(other, b, 0o600))
	return other
}

// pagesOf tells where what a bbolt file holds lies. All numbers in it are little-endian on the machines we test on.
type pagesOf []byte

func (f pagesOf) page(id uint64) []byte  { return f[id*pageSize:][:pageSize] }
func (f pagesOf) flags(id uint64) uint16 { return binary.LittleEndian.Uint16(f.page(id)[8:]) }
func (f pagesOf) count(id uint64) int    { return int(binary.LittleEndian.Uint16(f.page(id)[10:])) }
func (f pagesOf) child(id uint64, i int) uint64 {
	return binary.LittleEndian.Uint64(f.page(id)[16+16*i+8:])
}

// meta returns the offset of the meta page in force.
func (f pagesOf) meta() int64 {
	if binary.LittleEndian.Uint64(f.page(0)[64:]) > binary.LittleEndian.Uint64(f.page(1)[64:]) {
		return 0
	}
	return pageSize
}

// of returns the pages with a flag that are reached from the root.
func (f pagesOf) of(t testing.TB, path string, flag uint16) (ids []uint64) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, ReadOnly: true, PreLoadFreelist: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		for id := 2; ; {
			info, err := tx.Page(id)
			if err != nil || info == nil {
				return err
			}
			if info.Type != "free" && f.flags(uint64(id)) == flag {
				ids = append(ids, uint64(id))
			}
			if id++; info.Type != "free" {
				id += info.OverflowCount
			}
		}
	}))
	return ids
}

// sealed returns a patch of the meta page in force, and of the other one, with their checksums made right.
func (f pagesOf) sealed(change func(meta []byte)) (patches []patch) {
	for i := range uint64(2) {
		meta := slices.Clone(f.page(i)[16:80])
		change(meta)
		h := fnv.New64a()
		h.Write(meta[:56])
		binary.LittleEndian.PutUint64(meta[56:], h.Sum64())
		patches = append(patches, patch{int64(i)*pageSize + 16, meta})
	}
	return patches
}

// No byte of the newer meta page in which a bit flips brings back what was spent, and acknowledged, at Synced.
func TestFlippedMeta(t *testing.T) {
	path := storePath(t)
	limits := limitsOf(t, damagedNames, map[Name]Limit{damagedPartly: {Burst: 10, Count: 1, Period: 24 * time.Hour, Durability: Synced}})
	key := damagedPartly.Key("a")
	l, err := Open(path, limits, damagedOptions())
	require.NoError(t, err)
	defer l.Close()
	l.store.(*BoltStore).together()
	for range 10 {
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	meta := pagesOf(sound).meta()
	path = filepath.Join(t.TempDir(), "flipped.db")
	for at := range int64(metaBytes + 16) {
		image := bytes.Clone(sound)
		image[meta+at] ^= 1 << (at * 5 % 8)
		require.NoError(t, os.WriteFile(path, image, 0o600))
		s, err := OpenBolt(path, damagedNames, &BoltOptions{ReadOnly: true})
		if at >= 16 && at < metaBytes {
			require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
			continue
		}
		require.NoError(t, err, "what nobody reads")
		require.Equal(t, damagedStart.Add(10*24*time.Hour).UnixNano(), load(t, s, key))
		require.NoError(t, s.Close())
	}

	sound[meta+30] ^= 1
	require.NoError(t, os.WriteFile(path, sound, 0o600))
	_, err = Open(path, limits, damagedOptions())
	require.ErrorIs(t, err, ErrCorrupt)
	o := damagedOptions()
	o.Recover = true
	l2, err := Open(path, limits, o)
	require.NoError(t, err)
	defer l2.Close()
	aside, err := filepath.Glob(path + ".corrupt-*")
	require.NoError(t, err)
	require.Len(t, aside, 1)
}

const truncatedChild = "STINT_TRUNCATED" // the environment variable that makes a child truncate a file that it has open

// A file that another truncates while it is open: what is mapped of it is a memory fault, and that is ErrCorrupt, not the end
// of the process.
func TestTruncatedWhileOpen(t *testing.T) {
	if os.Getenv(truncatedChild) == "" {
		exe, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(exe, "-test.run=^TestTruncatedWhileOpen$", "-test.count=1")
		cmd.Env = append(os.Environ(), truncatedChild+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out[:min(len(out), 2000)])
		return
	}
	path := storePath(t)
	writeSound(t, path, 2_000)
	l, err := Open(path, damagedLimits(t), damagedOptions())
	require.NoError(t, err)
	s := l.store.(*BoltStore)
	require.NoError(t, s.checkpoint())
	sweepAll(t, s, 0) // the pages are not looked at any more
	require.NoError(t, os.Truncate(path, 2*pageSize))
	for i := range 100 {
		d, err := l.Spend(damagedKey(i), 1)
		require.ErrorIs(t, err, ErrCorrupt)
		require.Zero(t, d)
	}
	_, err = s.Load(damagedKey(200))
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorIs(t, s.Save([]Change{{damagedKey(0), 1}}), ErrCorrupt)
	require.NoError(t, l.Close())
}

// What a bbolt file must never say: most of it would end the process, or keep it busy for ever, if bbolt were let near it.
func TestNastyPages(t *testing.T) {
	const buckets = 4_000
	job := damagedJob{Sound: filepath.Join(t.TempDir(), "sound.db"), Buckets: buckets}
	writeSound(t, job.Sound, buckets)
	sound, err := os.ReadFile(job.Sound)
	require.NoError(t, err)
	f := pagesOf(sound)
	branches, leaves := f.of(t, job.Sound, 1), f.of(t, job.Sound, 2)
	require.NotEmpty(t, branches)
	freelist := binary.LittleEndian.Uint64(sound[f.meta()+48:])
	u16 := func(n uint16) []byte { return binary.LittleEndian.AppendUint16(nil, n) }
	u32 := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	u64 := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	var what []string
	nasty := func(name string, patches ...patch) {
		what = append(what, name)
		job.Cases = append(job.Cases, damagedCase{Patches: patches})
	}
	for _, id := range branches {
		at := int64(id) * pageSize
		for _, i := range []int{0, f.count(id) / 2, f.count(id) - 1} {
			child := at + 16 + 16*int64(i) + 8
			nasty("a branch whose child is itself", patch{child, u64(id)})
			nasty("a branch whose child is its sibling's", patch{child, u64(f.child(id, (i+1)%f.count(id)))})
			nasty("a branch whose child is another branch", patch{child, u64(branches[0])})
			nasty("a branch whose child is the freelist", patch{child, u64(freelist)})
			nasty("a branch whose child is beyond the file", patch{child, u64(1 << 20)})
			nasty("a branch whose child is beyond memory", patch{child, u64(1 << 60)})
		}
		nasty("a branch with no children", patch{at + 10, u16(0)})
		nasty("a branch with too many children", patch{at + 10, u16(0xFFFF)})
		nasty("a branch that is long", patch{at + 12, u32(0x7FFFFFFF)})
	}
	for _, id := range []uint64{leaves[0], leaves[len(leaves)/2]} {
		at := int64(id) * pageSize
		for _, overflow := range []uint32{1, 0xFF, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF} {
			nasty("a leaf that is long", patch{at + 12, u32(overflow)})
		}
		for _, count := range []uint16{0, uint16(f.count(id) + 1), uint16(f.count(id) - 1), 0x7FFF, 0xFFFF} {
			nasty("a leaf with another count", patch{at + 10, u16(count)})
		}
		for _, flags := range []uint16{0, 1, 4, 0x10, 3} {
			nasty("a leaf of another type", patch{at + 8, u16(flags)})
		}
		for i := range int64(4) {
			for _, n := range []uint32{0, 1, 0xFFFF, 0x7FFFFFF, 0x7FFFFFFF, 0xFFFFFFFF} {
				nasty(fmt.Sprint("an element whose word ", i, " is wrong"), patch{at + 16 + 16*5 + 4*i, u32(n)})
			}
		}
		var long []patch
		for i := range int64(f.count(id)) {
			long = append(long, patch{at + 16 + 16*i + 12, u32(0x7F000000)})
		}
		nasty("a leaf of long values", long...)
		nasty("a leaf of zeros", patch{at, make([]byte, pageSize)})
		nasty("a leaf of ones", patch{at, bytes.Repeat([]byte{0xFF}, pageSize)})
		nasty("a leaf of ones after its header", patch{at + 16, bytes.Repeat([]byte{0xFF}, pageSize-16)})
		nasty("a leaf that is a copy of another", patch{at + 8, f.page(leaves[1])[8:]})
	}
	list := int64(freelist) * pageSize
	require.Positive(t, f.count(freelist))
	nasty("a freelist without end", patch{list + 10, u16(0xFFFF)}, patch{list + 16, u64(1 << 40)})
	nasty("a freelist with a negative count", patch{list + 10, u16(0xFFFF)}, patch{list + 16, u64(1 << 63)})
	nasty("a freelist of too many", patch{list + 10, u16(0xFFFE)})
	nasty("a freelist that is long", patch{list + 12, u32(0xFFFFFFFF)})
	nasty("a free page beyond the file", patch{list + 16, u64(1 << 33)})
	nasty("a free page beyond numbers", patch{list + 16, u64(1<<64 - 1)})
	nasty("page 0 is free", patch{list + 16, u64(0)})
	nasty("the page that is the freelist is free", patch{list + 16, u64(freelist)})
	nasty("a branch is free", patch{list + 16, u64(branches[0])})
	for _, n := range []uint64{0, 1, 5, 1 << 20, 1 << 40, 1<<63 - 1, 1<<64 - 1} {
		nasty("a wrong root", f.sealed(func(m []byte) { binary.LittleEndian.PutUint64(m[16:], n) })...)
		nasty("a wrong freelist", f.sealed(func(m []byte) { binary.LittleEndian.PutUint64(m[32:], n) })...)
		nasty("a wrong high-water mark", f.sealed(func(m []byte) { binary.LittleEndian.PutUint64(m[40:], n) })...)
		kind := "a wrong transaction number"
		if n >= 1<<62 {
			kind = "a transaction number beyond any"
		}
		nasty(kind, f.sealed(func(m []byte) { binary.LittleEndian.PutUint64(m[48:], n) })...)
	}
	for _, n := range []uint32{0, 1, 512, 4097, 8192, 1 << 16, 1 << 31} {
		nasty("a wrong page size", f.sealed(func(m []byte) { binary.LittleEndian.PutUint32(m[8:], n) })...)
	}
	outcomes := job.outcomes(t)
	for i, o := range outcomes {
		outcomes[i] = fmt.Sprintf("%-45s %s", what[i], o)
	}
	checkOutcomes(t, outcomes)
}

// A file that ends early.
func TestTruncatedFile(t *testing.T) {
	const buckets = 300
	job := damagedJob{Sound: filepath.Join(t.TempDir(), "sound.db"), Buckets: buckets}
	writeSound(t, job.Sound, buckets)
	for size := int64(512); size < usedPages(t, job.Sound)+pageSize; size += 512 {
		job.Cases = append(job.Cases, damagedCase{Truncate: size})
	}
	outcomes := job.outcomes(t)
	checkOutcomes(t, outcomes)
	for _, o := range outcomes {
		require.NotContains(t, o, "decided differently")
	}
}

// usedPages returns the bytes of a file that are not behind its last page.
func usedPages(t testing.TB, path string) int64 {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	m, err := readMeta(file)
	require.NoError(t, err)
	return int64(m.pages) * pageSize
}

// Each page in turn is zeros.
func TestZeroPages(t *testing.T) {
	const buckets = 1_500
	job := damagedJob{Sound: filepath.Join(t.TempDir(), "sound.db"), Buckets: buckets}
	writeSound(t, job.Sound, buckets)
	for at := int64(0); at < usedPages(t, job.Sound); at += pageSize {
		job.Cases = append(job.Cases, damagedCase{Patches: []patch{{at, make([]byte, pageSize)}}})
	}
	outcomes := job.outcomes(t)
	checkOutcomes(t, outcomes)
	for _, o := range outcomes {
		require.NotContains(t, o, "decided differently")
	}
}

// What Open says of a file that is not one of stint's, or not to be had.
func TestOpenNamesWhatIsWrong(t *testing.T) {
	other := func(change func(tx *bolt.Tx) error) func(path string) {
		return func(path string) {
			db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
			require.NoError(t, err)
			require.NoError(t, db.Update(change))
			require.NoError(t, db.Close())
		}
	}
	sound := func(change func(tx *bolt.Tx) error) func(path string) {
		return func(path string) {
			writeSound(t, path, 20)
			other(change)(path)
		}
	}
	write := func(content string) func(path string) {
		return func(path string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	}
	for _, c := range []struct {
		name   string
		make   func(path string)
		err    error
		aside  bool // with Recover
		detail string
	}{
		{"empty", write(""), ErrCorrupt, true, "it is empty; remove it to start anew"},
		{"one byte", write("x"), ErrCorrupt, true, ""},
		{"text", write(strings.Repeat("not a database\n", 1000)), ErrCorrupt, true, ""},
		{"another program's", other(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket([]byte("accounts"))
			return err
		}), ErrFormat, false, "not one of stint's"},
		{"another program's, with a bucket of that name", other(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket(metaBucket)
			return err
		}), ErrFormat, false, "not one of stint's"},
		{"a newer format", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Put(formatKey, bigEndian(formatNumber+1))
		}), ErrFormat, false, "format 2, and this version reads 1"},
		{"a format that is no number", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Put(formatKey, []byte("one"))
		}), ErrCorrupt, true, ""},
		{"other names", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Bucket(namesBucket).Put([]byte("1"), []byte("Else"))
		}), ErrNameMismatch, false, `name 1 is "Else" in the file, and declared as "Partly"`},
		{"no names", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).DeleteBucket(namesBucket)
		}), ErrCorrupt, true, "names table"},
		{"a name that is no number", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Bucket(namesBucket).Put([]byte("70000"), []byte("Else"))
		}), ErrCorrupt, true, "names table"},
		{"no journal", sound(func(tx *bolt.Tx) error { return tx.DeleteBucket(journalBucket) }), ErrCorrupt, true, "journal"},
		{"a journal record that is none", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(journalBucket).Put(bigEndian(1<<40), []byte("record"))
		}), ErrCorrupt, true, "checksum"},
		{"a hold on nothing", sound(func(tx *bolt.Tx) error {
			return tx.Bucket(holdsBucket).Put([]byte("nothing"), bigEndian(1<<62))
		}), ErrCorrupt, true, "hold"},
		{"pages of another size", func(path string) {
			db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, PageSize: 8192})
			require.NoError(t, err)
			require.NoError(t, db.Close())
		}, ErrFormat, false, "pages of 8192 bytes"},
		{"no list of free pages", func(path string) {
			db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, PageSize: pageSize, NoFreelistSync: true})
			require.NoError(t, err)
			require.NoError(t, db.Update(func(tx *bolt.Tx) error { return layOut(tx, nil) }))
			require.NoError(t, db.Close())
		}, ErrFormat, false, "without a list of free pages"},
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
			require.ErrorContains(t, err, c.detail)
			if c.detail != "hold" {
				require.ErrorContains(t, err, path)
			}
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
			}
			after, _ := os.ReadFile(path)
			if c.detail != "hold" { // which is met when the file is open, and its journal taken home by Close
				require.True(t, bytes.Equal(before, after), "it is left as it was")
			}
			before = after

			o := damagedOptions()
			events := make(chan Event, 10)
			o.Recover, o.OnEvent = true, func(e Event) { events <- e }
			l, err := Open(path, damagedLimits(t), o)
			if !c.aside {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			e := <-events
			require.Equal(t, FileSetAside, e.Kind)
			require.ErrorIs(t, e.Err, ErrCorrupt)
			require.Regexp(t, `stint\.db\.corrupt-\d{8}T\d{6}\.\d{9}Z$`, e.Path)
			aside, err := os.ReadFile(e.Path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, aside) || c.detail == "hold")
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

// TestLockingChild is not a test, but the process that holds a file until its standard input ends.
func TestLockingChild(t *testing.T) {
	path := os.Getenv(lockingChild)
	if path == "" {
		t.Skip("for children only")
	}
	s, err := OpenBolt(path, damagedNames, nil)
	require.NoError(t, err)
	fmt.Println("locked")
	io.Copy(io.Discard, os.Stdin)
	require.NoError(t, s.Close())
}

const lockingChild = "STINT_LOCKED" // the environment variable that makes a child hold a file

// A file that another process has, or another Limiter of this one, is ErrLocked, and is there when they are gone; Recover does
// not set it aside.
func TestOpenLocked(t *testing.T) {
	path := storePath(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^TestLockingChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), lockingChild+"="+path)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "locked"; {
	}
	o := damagedOptions()
	o.LockTimeout, o.Recover = time.Millisecond, true
	_, err = Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, ErrLocked)
	opened := make(chan error)
	go func() {
		o := damagedOptions()
		o.LockTimeout = time.Minute
		l, err := Open(path, damagedLimits(t), o)
		if err == nil {
			err = l.Close()
		}
		opened <- err
	}()
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.NoError(t, <-opened)

	o.LockTimeout = time.Minute
	l, err := Open(path, damagedLimits(t), o)
	require.NoError(t, err)
	o.LockTimeout = time.Millisecond
	_, err = Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, l.Close())
}

// A file, or a directory, that may not be written is the operating system's error.
func TestOpenReadOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in")
	path := filepath.Join(dir, "stint.db")
	require.NoError(t, os.Mkdir(dir, 0o700))
	if writable := func() bool {
		require.NoError(t, os.Chmod(dir, 0o500))
		defer os.Chmod(dir, 0o700)
		f, err := os.Create(filepath.Join(dir, "x"))
		if err == nil {
			f.Close()
			os.Remove(f.Name())
		}
		return err == nil
	}(); writable {
		t.Skip("permissions do not hold back whoever runs this")
	}
	require.NoError(t, os.Chmod(dir, 0o500))
	defer os.Chmod(dir, 0o700)
	_, err := Open(path, damagedLimits(t), damagedOptions())
	require.ErrorIs(t, err, fs.ErrPermission)
	require.NoError(t, os.Chmod(dir, 0o700))
	writeSound(t, path, 10)
	require.NoError(t, os.Chmod(path, 0o400))
	o := damagedOptions()
	o.Recover = true
	_, err = Open(path, damagedLimits(t), o)
	require.ErrorIs(t, err, fs.ErrPermission)
}

// Damage that comes later is told by each call that meets it, and a broken file lets go of its lock.
func TestDamageMetLater(t *testing.T) {
	path := storePath(t)
	writeSound(t, path, 5_000)
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	leaves := pagesOf(sound).of(t, path, leafPage)
	l, err := Open(path, damagedLimits(t), damagedOptions())
	require.NoError(t, err)
	require.NoError(t, l.Hold(damagedKey(1), damagedStart.Add(time.Hour)))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, id := range leaves {
		if pagesOf(sound).count(id) > 20 {
			_, err = f.WriteAt(make([]byte, pageSize), int64(id)*pageSize)
			require.NoError(t, err)
		}
	}
	require.NoError(t, f.Close())
	failed := 0
	for i := range 4_000 {
		d, err := l.Spend(damagedKey(i), 1)
		if err != nil {
			failed++
			require.ErrorIs(t, err, ErrCorrupt)
			require.Zero(t, d)
			require.False(t, l.Allow(damagedKey(i)))
		}
	}
	require.Greater(t, failed, 3_000)
	require.Positive(t, l.Stats().Limits[damagedPartly].Errors)
	l.Close()
	o := damagedOptions()
	o.Recover = true
	l, err = Open(path, damagedLimits(t), o)
	if err == nil {
		l.Close()
	}
	require.NotErrorIs(t, err, ErrLocked)
}

// Of several that find a file corrupt at once, one sets it aside, and has the new one.
// A writer that waits for a reader, to map more of the file, does not wait for ever where that one meets damage.
func TestDamageMetWhileAWriterMaps(t *testing.T) {
	s, err := OpenBolt(storePath(t), storeNames, &BoltOptions{maxSize: 1 << 30}) // with which no more is mapped than there is
	require.NoError(t, err)
	reading, goOn := make(chan struct{}), make(chan struct{})
	read := make(chan error, 1)
	go func() {
		read <- s.view(func(*bolt.Tx) error { close(reading); <-goOn; panic("damage") })
	}()
	<-reading
	var changes []Change
	for i := range 20_000 {
		changes = append(changes, Change{Key{1, fmt.Sprintf("%0100d", i)}, 1 << 60})
	}
	saved := make(chan error, 1)
	go func() {
		saved <- s.update(func(tx *bolt.Tx) error { return s.putHome(tx, slices.Values(changes)) })
	}()
	awaitWaiter("mmap", saved)
	require.Empty(t, saved, "it did not need to map")
	close(goOn)
	require.ErrorIs(t, <-read, ErrCorrupt)
	<-saved // an error or not: the file is not used any more
	s.Close()
}

func TestRecoverOnce(t *testing.T) {
	for range 10 {
		path := storePath(t)
		require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
		type opened struct {
			l   *Limiter
			err error
		}
		const n = 8
		all := make(chan opened, n)
		for range n {
			go func() {
				o := damagedOptions()
				o.LockTimeout, o.Recover = 300*time.Millisecond, true
				l, err := Open(path, damagedLimits(t), o)
				all <- opened{l, err}
			}()
		}
		var have []*Limiter
		for range n {
			if o := <-all; o.err == nil {
				have = append(have, o.l)
			} else {
				require.ErrorIs(t, o.err, ErrLocked)
			}
		}
		aside, err := filepath.Glob(path + ".corrupt-*")
		require.NoError(t, err)
		require.Len(t, aside, 1)
		require.Len(t, have, 1)
		require.False(t, have[0].store.(*BoltStore).file.replaced())
		require.NoError(t, have[0].Close())
	}
}

// The checksum of a meta page is not of its header: what that says of the page's number is not where it is written again.
func TestFlippedMetaHeader(t *testing.T) {
	path := makeBolt(t, storeNames, Change{Key{1, "a"}, 1 << 62})
	file, err := os.Open(path)
	require.NoError(t, err)
	m, err := readMeta(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	for page := uint64(2); page < m.pages; page++ {
		content := slices.Clone(sound)
		binary.NativeEndian.PutUint64(content[m.tx%2*pageSize:], page)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		s := openBolt(t, path, storeNames)
		tat, err := s.Load(Key{1, "a"})
		require.NoError(t, err)
		require.Equal(t, int64(1<<62), tat)
		require.NoError(t, s.Close())
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content[2*pageSize:], after[2*pageSize:], "page %d", page)
	}
}

package hostlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/testlength"
)

// eventually waits until is returns true.
func eventually(t *testing.T, is func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// A guest's new Names, and a SetLimits that changes other limits, give no token
// back to a bucket that a larger limit of a guest has emptied.
func TestRollingDeployment(t *testing.T) {
	path := filePath(t)
	old := limitsWith(t, map[stint.Name]stint.Limit{perID: stint.PerHour(10)})
	owner := openOn(t, path, old, nil)
	day := stint.PerDay(100)
	day.Durability = stint.Synced
	names := stint.Names{perID: {Label: "PerID", Limit: day}}
	for n := range 3 {
		names[stint.Name(10+n)] = stint.NameSpec{Label: strings.Repeat("N", n+1), Limit: stint.PerHour(5)}
	}
	limits := newLimits(t, names)
	guest := openOn(t, path, limits, nil)
	key, spent := perID.Key("a"), 0
	for n := range 4 {
		for {
			d := spend(t, guest, key, 1)
			if !d.Allowed {
				break
			}
			spent++
		}
		if n < 3 {
			spend(t, guest, stint.Name(10+n).Key("x"), 1)
			require.NoError(t, owner.SetLimits(old))
		}
	}
	require.Equal(t, 100, spent)
}

// An owner that closes while spends of a guest wait for their commit answers
// them: none of them is made, and charged, once more at the next owner. Those that a
// slow disk leaves without an answer are not made once more, either.
func TestOrderlyCloseChargesOnce(t *testing.T) {
	const burst = 100_000
	path := filePath(t)
	limits := limitsWith(t, map[stint.Name]stint.Limit{
		perID: {Burst: burst, Count: 1, Period: time.Hour, Durability: stint.Synced}})
	const callers = 16
	var acknowledged, unanswered [callers]atomic.Int64
	for range testlength.Of(50, 5) {
		owner := openOn(t, path, limits, nil)
		guest := openOn(t, path, limits, nil)
		var stop atomic.Bool
		var closes atomic.Pointer[time.Time]
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for !stop.Load() {
					_, err := guest.Spend(perID.Key(fmt.Sprint("id ", c)), 1)
					if begun := closes.Load(); begun != nil && isLate(err, *begun) {
						unanswered[c].Add(1)
						continue
					}
					assert.NoError(t, err)
					acknowledged[c].Add(1)
				}
			})
		}
		begun := acknowledged[0].Load()
		eventually(t, func() bool { return acknowledged[0].Load() > begun+3 }, "the guest spends")
		now := time.Now()
		closes.Store(&now)
		require.NoError(t, owner.Close())
		stop.Store(true)
		all.Wait()
		require.NoError(t, guest.Close())
	}
	l := openOn(t, path, limits, nil)
	for c := range callers {
		d := check(t, l, perID.Key(fmt.Sprint("id ", c)))
		require.GreaterOrEqual(t, burst-d.Remaining, acknowledged[c].Load())
		require.LessOrEqual(t, burst-d.Remaining, acknowledged[c].Load()+unanswered[c].Load())
	}
}

// isLate reports whether a call had no answer because it took longer than its owner,
// which began to close then, waits for calls under way.
func isLate(err error, begun time.Time) bool {
	return errors.Is(err, ErrNoAnswer) && time.Since(begun) >= drainTime
}

// While a file that was removed is not made anew, other processes are guests of
// its owner: there is one owner, and no token comes back.
func TestFileRemoved(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	owner := openOn(t, path, limits, &Options{LimiterOptions: stint.Options{FlushInterval: time.Hour}})
	key := perID.Key("a")
	require.True(t, spend(t, owner, key, 60).Allowed)
	for _, gone := range []func() error{
		func() error { return os.Remove(path) }, func() error { return os.Rename(path, path+".moved") },
	} {
		require.NoError(t, gone())
		late := openOn(t, path, limits, nil)
		require.Equal(t, RoleGuest, late.Role())
		require.False(t, spend(t, late, key, 41).Allowed)
		if owner.Flush() == nil { // otherwise it notices now
			require.FileExists(t, path, "it has noticed")
		}
		eventually(t, func() bool { _, err := os.Stat(path); return err == nil }, "the owner makes the file anew")
		require.NoError(t, late.Close())
		eventually(t, func() bool { return owner.Flush() == nil }, "it is the owner's file")
	}
	require.NoError(t, owner.Close())
	require.InDelta(t, 60, spentOf(t, path, "a", stint.PerHour(100)), 1)
}

// untried returns a Limiter of the file that has not tried to become its owner yet.
func untried(t *testing.T, path string, limits *stint.Limits, now func() time.Time) *Limiter {
	t.Helper()
	o, p, err := prepare(path, limits.Names(), patient(&Options{LimiterOptions: stint.Options{Now: now, MaxResident: 1000}}))
	require.NoError(t, err)
	l := &Limiter{place: p, opts: o, changed: make(chan struct{}), closed: make(chan struct{})}
	l.limits.Store(declare(limits))
	l.put(nil)
	return l
}

// A process is stopped after it has opened the file, and before it listens: it waits
// for the answer of one that is about to close. If the file is removed then, even
// twice, no other process makes one and admits all tokens again.
func TestFileRemovedDuringTakeover(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	key := perID.Key("a")
	before := openOn(t, path, limits, nil)
	spend(t, before, key, 60)
	require.NoError(t, before.Close())

	late := untried(t, path, limits, nil)
	socket, err := net.Listen("unix", late.place.socket)
	require.NoError(t, err)
	theirs := make(chan *backend, 1)
	go func() {
		for open := true; open; {
			nc, err := socket.Accept()
			if !assert.NoError(t, err) {
				return
			}
			if _, err := wire.NewReader(nc).Next(); err == nil {
				file, err := stint.Open(path, limits, &stint.Options{LockTimeout: 1})
				if open = err == nil; open {
					assert.NoError(t, file.Close())
				} else { // it waits between the two
					assert.NoError(t, socket.Close())
					assert.NoError(t, os.Remove(path))
					b, _ := late.try()
					os.Remove(path)
					theirs <- b
				}
				nc.Write(frame(wire.OpBye, 0, nil))
			}
			nc.Close()
		}
	}()
	b, err := untried(t, path, limits, nil).try()
	require.NoError(t, err)
	defer b.close()
	require.Equal(t, RoleOwner, b.role())
	if other := <-theirs; other != nil {
		other.close()
		t.Fatal("there are two owners")
	}
	require.False(t, spend(t, b.limiter, key, 41).Allowed)
	guest, err := late.try()
	require.NoError(t, err)
	defer guest.close()
	require.Equal(t, RoleGuest, guest.role())
}

// If the file is removed while its owner closes, no other process makes one, and the
// owner puts it back.
func TestFileRemovedDuringClose(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	late := untried(t, path, limits, nil)
	stopped := sync.OnceFunc(func() {
		assert.NoError(t, os.Remove(path))
		b, err := late.try()
		assert.ErrorIs(t, err, ErrNoOwner)
		assert.Nil(t, b)
		assert.NoFileExists(t, path)
	})
	var server atomic.Pointer[Server]
	owner := openOn(t, path, limits, &Options{LimiterOptions: stint.Options{Now: func() time.Time {
		if s := server.Load(); s != nil && s.isClosing() {
			stopped()
		}
		return time.Now()
	}}})
	server.Store(owner.now.Load().server)
	spend(t, owner, perID.Key("a"), 60)
	require.NoError(t, owner.Close())
	b, err := late.try()
	require.NoError(t, err)
	require.Equal(t, RoleOwner, b.role())
	require.False(t, spend(t, b.limiter, perID.Key("a"), 41).Allowed)
	require.NoError(t, b.close())
}

// If the file is removed just before its owner closes, the next owner has what was
// acknowledged, at each level.
func TestFileRemovedBeforeClose(t *testing.T) {
	for level := stint.Flushed; level <= stint.Synced; level++ {
		t.Run(level.String(), func(t *testing.T) {
			path, limit := filePath(t), stint.PerHour(100)
			limit.Durability = level
			limits := limitsWith(t, map[stint.Name]stint.Limit{perID: limit})
			key := perID.Key("a")
			owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
			for _, l := range []*Limiter{owner, guest} {
				require.True(t, spend(t, l, key, 30).Allowed)
			}
			require.NoError(t, os.Remove(path))
			require.NoError(t, owner.Close())
			require.False(t, spend(t, guest, key, 41).Allowed)
			require.Equal(t, RoleOwner, guest.Role())
			require.True(t, spend(t, guest, key, 40).Allowed)
		})
	}
}

// acceptAll calls be with each connection, until the listener is closed.
func acceptAll(l net.Listener, be func(nc net.Conn)) {
	for nc, err := l.Accept(); err == nil; nc, err = l.Accept() {
		be(nc)
	}
}

// listenOn calls be with each connection to the socket of a file, until the end of
// the test.
func listenOn(t *testing.T, path string, be func(nc net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", path+".sock")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go acceptAll(l, be)
}

// A process that starts while no owner listens waits for the one that has the lock,
// even if there is no file, whether or not the last owner has left its socket.
func TestStartDuringTakeover(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	late := untried(t, path, limits, nil)
	unlock, err := late.place.lock(0)
	require.NoError(t, err)
	nc, err := net.ListenUnix("unix", &net.UnixAddr{Name: late.place.socket})
	require.NoError(t, err)
	nc.SetUnlinkOnClose(false)
	require.NoError(t, nc.Close())
	for range 2 {
		require.ErrorIs(t, errorOf(late.try()), ErrNoOwner)
		os.Remove(late.place.socket)
	}
	require.NoFileExists(t, path)
	unlock()
	b, err := late.try()
	require.NoError(t, err)
	require.Equal(t, RoleOwner, b.role())
	require.NoError(t, b.close())
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "the file, and neither socket nor lock")
}

// If a process listens at the socket but is no owner yet, or no longer, no other one
// makes a file: it may have the buckets of one that was removed.
func TestNoFileBesideListener(t *testing.T) {
	path := filePath(t)
	listenOn(t, path, func(nc net.Conn) {
		nc.Write(frame(wire.OpBye, 0, nil))
		nc.Close()
	})
	require.ErrorIs(t, errorOf(untried(t, path, limitsWith(t, nil), nil).try()), ErrNoOwner)
	require.NoFileExists(t, path)
}

// A process whose file was replaced leaves the socket of the new file's owner alone,
// when it would listen and when it stops.
func TestOldOwner(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	own := openAlone(t, path, limits, nil)
	old := serveOn(t, own, path)
	require.NoError(t, os.Remove(path))
	next := serveOn(t, openAlone(t, path, limits, nil), path)
	require.ErrorIs(t, errorOf(Serve(own, path, nil)), ErrNoOwner)
	require.True(t, next.socket.inPlace())
	require.NoError(t, old.Close())
	dialOn(t, path, nil, nil)
}

// A process is no guest of an owner that has another file than the one at the path,
// even if that owner has not noticed yet.
func TestOwnerOfAnotherFile(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	other := backupBeside(t, path, limits)
	owner := openAlone(t, path, limits, nil)
	serveOn(t, owner, path)
	require.NoError(t, os.Rename(other, path))
	late := openOn(t, path, limits, nil)
	require.Equal(t, RoleOwner, late.Role())
	require.False(t, spend(t, late, perID.Key("a"), 31).Allowed)
}

// A Server whose file was replaced leaves the socket to the owner of the new file.
func TestServerOfReplacedFile(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	other := backupBeside(t, path, limits)
	server := serveOn(t, openAlone(t, path, limits, nil), path)
	require.NoError(t, os.Rename(other, path))
	eventually(t, func() bool { return !server.socket.inPlace() }, "it stops listening")
	require.ErrorIs(t, errorOf(Dial(path, nil, nil)), ErrNoOwner)
	require.Equal(t, RoleOwner, openOn(t, path, limits, nil).Role())
}

// backupBeside makes another file beside the one at path, in which 70 tokens of a
// are spent, and returns its path.
func backupBeside(t *testing.T, path string, limits *stint.Limits) string {
	t.Helper()
	other := filepath.Join(filepath.Dir(path), "backup.db")
	backup, err := stint.Open(other, limits, nil)
	require.NoError(t, err)
	spend(t, backup, perID.Key("a"), 70)
	require.NoError(t, backup.Close())
	return other
}

// If another file is put at the path, all processes move to it: the old owner
// becomes a guest of the next one, and leaves its socket alone.
func TestFileReplaced(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	other := backupBeside(t, path, limits)

	all := []*Limiter{openOn(t, path, limits, nil), openOn(t, path, limits, nil), openOn(t, path, limits, nil)}
	require.NoError(t, os.Rename(other, path))
	for _, l := range all {
		eventually(t, func() bool {
			b, err := l.Bucket(perID.Key("a"))
			return err == nil && b.Remaining == 30
		}, "it moves to the other file")
	}
	owners := 0
	for _, l := range all {
		if l.Role() == RoleOwner {
			owners++
		}
		require.True(t, spend(t, l, perID.Key("a"), 10).Allowed)
	}
	require.Equal(t, 1, owners)
	require.False(t, spend(t, all[0], perID.Key("a"), 1).Allowed)
}

// An owner keeps its file if it hears late that its file before that was replaced.
func TestReplacedLate(t *testing.T) {
	owner := openOn(t, filePath(t), limitsWith(t, nil), nil)
	now := owner.now.Load()
	owner.replaced(inMemory(t, stint.NewMemStore(), limitsWith(t, nil), nil), errMoved)
	require.Same(t, now, owner.now.Load())
}

// A Snapshot of a guest, which needs a connection of its own, waits for the next
// owner as other calls do.
func TestSnapshotBetweenOwners(t *testing.T) {
	t.Parallel()
	path, limits := filePath(t), limitsWith(t, nil)
	for range testlength.Of(400, 40) {
		owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
		require.Equal(t, RoleGuest, guest.Role())
		closed, begun := make(chan error), time.Now()
		go func() { closed <- owner.Close() }()
		for guest.Role() != RoleOwner {
			if err := errorOf(guest.Snapshot(io.Discard)); !isLate(err, begun) {
				require.NoError(t, err)
			}
		}
		require.NoError(t, <-closed)
		require.NoError(t, guest.Close())
	}
}

// A Snapshot waits for the socket of an owner that is about to make it anew.
func TestSnapshotWithoutSocket(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	server := owner.now.Load().server
	server.mu.Lock()
	server.socket.remove()
	require.NoError(t, server.socket.Close())
	server.mu.Unlock()
	require.NoError(t, errorOf(guest.Snapshot(io.Discard)))
}

// While the owner is gone for good, a Snapshot ends as other calls do.
func TestSnapshotWithoutOwner(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	owner := openOn(t, path, limits, nil)
	guest := dialOn(t, path, nil, &Options{TakeoverTimeout: time.Minute})
	require.NoError(t, owner.Close())
	require.ErrorIs(t, errorOf(guest.Snapshot(io.Discard)), ErrNoOwner)
}

// withoutOwner takes the owner from a guest, as lost does, and leaves it to the
// test to find another one.
func withoutOwner(t *testing.T, guest *Limiter) {
	t.Helper()
	require.Equal(t, RoleGuest, guest.Role())
	old := guest.now.Load()
	guest.mu.Lock()
	guest.put(nil)
	guest.mu.Unlock()
	old.close()
}

// A context has no part in the decision on a spend: a client that disconnects
// early spends all the same, even while there is no owner. Its end ends a Wait.
func TestContextBetweenOwners(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	withoutOwner(t, guest)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error)
	go func() { waits <- errorOf(guest.Wait(ctx, perID.Key("a").Cost(1))) }()
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
	spends := make(chan error)
	reqs := []stint.Request{perID.Key("a").Cost(1)}
	go func() { spends <- guest.DoEach(ctx, reqs, make([]stint.Decision, 1)) }()
	go func() { _, err := guest.Do(ctx, reqs, nil); spends <- err }()
	select {
	case err := <-spends:
		t.Fatal("a spend ended without an owner: ", err)
	case <-time.After(10 * time.Millisecond): // both wait
	}
	require.NoError(t, owner.Close())
	require.NoError(t, guest.take())
	require.NoError(t, <-spends)
	require.NoError(t, <-spends)
	require.EqualValues(t, 98, check(t, guest, reqs[0].Key).Remaining)
}

// A Wait whose owner closes goes on in the queue of the next owner.
func TestWaitBetweenOwners(t *testing.T) {
	path, limits, key := filePath(t), limitsWith(t, nil), perID.Key("a")
	owner, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	spend(t, owner, key, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- errorOf(guest.Wait(ctx, key.Cost(1))) }()
	eventually(t, func() bool { return waits(owner, key) }, "it is in the queue")
	require.NoError(t, owner.Close())
	eventually(t, func() bool { return guest.Role() == RoleOwner && waits(guest, key) }, "it is in the next queue")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// An owner that was stopped for longer than TakeoverTimeout goes on. The guest has
// given it up, but its reservation goes when its turn comes: the owner does not
// give that turn to another.
func TestReservationAtSilentOwner(t *testing.T) {
	path := filePath(t)
	owner := openOn(t, path, limitsWith(t, map[stint.Name]stint.Limit{perID: stint.PerHour(1)}), nil)
	guest := dialOn(t, path, nil, nil)
	spend(t, owner, perID.Key("a"), 1)
	turn := reserve(t, guest, perID.Key("a").Cost(1))
	require.Positive(t, turn.Delay())
	guest.now.Load().conn.fail(fmt.Errorf("%w for a second", ErrNoAnswer)) // as watch does
	eventually(t, func() bool { return len(connsOf(owner.now.Load().server)) == 0 }, "the connection is over")
	require.Positive(t, turn.Delay())
	require.NoError(t, owner.now.Load().server.Close()) // which waits for giveBack
	require.Greater(t, reserve(t, owner, perID.Key("a").Cost(1)).Delay(), time.Hour)
}

// Limits that change after the hello to the next owner reach it before the guest
// makes its first call.
func TestChangesDuringJoin(t *testing.T) {
	path := filePath(t)
	openOn(t, path, limitsWith(t, nil), nil)
	guest := openOn(t, path, limitsWith(t, nil), nil)
	withoutOwner(t, guest)
	b, err := guest.try()
	require.NoError(t, err)
	require.NoError(t, addNames(guest, stint.Names{7: {Label: "New"}}))
	require.NoError(t, guest.become(b))
	given := stint.Request{Key: stint.Name(7).Key("a"), Cost: 1, Limit: stint.PerHour(3)}
	d, err := guest.SpendAll(given)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Remaining)

	withoutOwner(t, guest)
	others, err := withNames(limitsWith(t, nil), stint.Names{7: {Label: "New"}, 8: {Label: "Other"}})
	require.NoError(t, err)
	other := openOn(t, path, others, nil)
	_, err = other.SpendAll(stint.Request{Key: stint.Name(8).Key("a"), Limit: stint.PerHour(1)})
	require.NoError(t, err)
	b, err = guest.try()
	require.NoError(t, err)
	require.NoError(t, addNames(guest, stint.Names{8: {Label: "Mine"}}))
	require.ErrorIs(t, guest.become(b), stint.ErrNameMismatch)
	require.Equal(t, RoleNone, guest.Role())
	b.close()
}

// Limits that change while a process opens the file, and that the file does not
// admit, are not forgotten: the process does not become the owner with the old
// ones.
func TestChangesDuringTakeover(t *testing.T) {
	path := filePath(t)
	others, err := withNames(limitsWith(t, nil), stint.Names{7: {Label: "Other"}})
	require.NoError(t, err)
	owner := openOn(t, path, others, nil) // now the file has 7 as Other
	events := newRecorder()
	l := openOn(t, path, limitsWith(t, nil), &Options{OnEvent: events.record, TakeoverTimeout: time.Second})
	require.Equal(t, RoleGuest, l.Role())

	l.changing.Lock()
	require.NoError(t, owner.Close())
	eventually(t, func() bool { // l has the file, and become waits
		g, err := Dial(path, nil, nil)
		if err != nil {
			return false
		}
		defer g.Close()
		return g.Limits().Names()[7].Label == ""
	}, "another process serves the file")
	wrong, err := withNames(limitsWith(t, nil), stint.Names{7: {Label: "New"}})
	require.NoError(t, err)
	l.limits.Store(declare(wrong)) // as Declare does before become can lock changing
	l.changing.Unlock()

	events.wait(t, RoleNone, true) // the owner has gone
	require.ErrorIs(t, events.wait(t, RoleNone, true).Err, stint.ErrNameMismatch)
	_, err = l.Spend(perID.Key("a"), 1)
	require.ErrorIs(t, err, ErrNoOwner)
	require.ErrorIs(t, err, stint.ErrNameMismatch)
	require.Equal(t, RoleNone, l.Role())
	require.NoError(t, l.SetLimits(limitsWith(t, map[stint.Name]stint.Limit{perID: stint.PerHour(5)})))
	events.wait(t, RoleOwner, false)
	require.EqualValues(t, 5, spend(t, l, perID.Key("a"), 1).Limit.Burst)
}

// If another file takes the place of one that a process is just taking over, the
// process moves to that file, too.
func TestFileReplacedDuringTakeover(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	other := backupBeside(t, path, limits)
	owner := openOn(t, path, limits, nil)
	l := openOn(t, path, limits, nil)
	withoutOwner(t, l)
	require.NoError(t, owner.Close())
	b, err := l.try()
	require.NoError(t, err)
	require.NotNil(t, b.server)
	require.NoError(t, os.Rename(other, path))
	eventually(t, b.server.isClosing, "the server gives the old file up")
	b.server.running.Wait()
	require.NoError(t, l.become(b))
	eventually(t, func() bool {
		b, err := l.Bucket(perID.Key("a"))
		return err == nil && b.Remaining == 30
	}, "it moves to the other file")
}

// A file that cannot be opened may stay so for hours, and each try reads some of
// it. So the pauses between the tries grow.
func TestPausesOfSeek(t *testing.T) {
	pauses := func(err error) (all []time.Duration) {
		for last := time.Duration(0); len(all) < 6; all = append(all, last) {
			last = pauseAfter(err, last)
		}
		return all
	}
	const ms = time.Millisecond
	require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 500 * ms, 500 * ms},
		pauses(fmt.Errorf("stint: open: %w", stint.ErrCorrupt)))
	require.Equal(t, slices.Repeat([]time.Duration{2 * ms}, 6), pauses(ErrNoOwner))
	require.Equal(t, slices.Repeat([]time.Duration{50 * ms}, 6), pauses(fmt.Errorf("%w: %w", ErrNoOwner, ErrNoAnswer)))
	require.Equal(t, slices.Repeat([]time.Duration{50 * ms}, 6), pauses(ErrRefused))
	require.Equal(t, 50*ms, pauseAfter(stint.ErrCorrupt, pauseAfter(ErrNoOwner, 500*ms)), "they begin anew")
}

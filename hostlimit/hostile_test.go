//go:build unix

package hostlimit

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/testlength"
)

// dialRaw connects without a hello.
func dialRaw(t testing.TB, path string) net.Conn {
	t.Helper()
	p := placeFor(t, path)
	nc, err := p.dial(time.Minute)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	return nc
}

// closedSoon reads until the owner ends the connection, and returns what it
// said.
func closedSoon(t testing.TB, nc net.Conn) []byte {
	t.Helper()
	nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	said, err := io.ReadAll(nc)
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	return said
}

// A guest that breaks the protocol loses its connection, and no other does.
func TestHostileGuest(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	events := newRecorder()
	openOn(t, path, limits, &Options{OnEvent: events.record})
	polite := openOn(t, path, limits, nil)
	call := func(o wire.Op, f func(*wire.Body)) []byte { return append(helloFrame(), frame(o, 7, f)...) }
	request := func(q stint.Request) func(*wire.Body) {
		return (&wire.Call{Op: wire.OpSpend, Requests: []stint.Request{q}}).Arguments
	}
	raw := func(p ...byte) func(*wire.Body) { return func(b *wire.Body) { b.Raw(p) } }
	huge := binary.BigEndian.AppendUint32(nil, 1<<31)
	for name, said := range map[string][]byte{
		"garbage":                bytes.Repeat([]byte{0xA5}, 1000),
		"text":                   []byte("GET / HTTP/1.1\r\nHost: quota.db\r\n\r\n"),
		"a huge length":          append(huge, make([]byte, 100)...),
		"a length of 0":          make([]byte, 100),
		"no hello":               frame(wire.OpFlush, 1, nil),
		"two hellos":             append(helloFrame(), helloFrame()...),
		"another magic":          frame(wire.OpHello, 0, raw([]byte("stant\x00\x09")...)),
		"an unknown op":          call(99, nil),
		"an op of the owner":     call(wire.OpReply, nil),
		"too many requests":      call(wire.OpSpend, raw(binary.AppendUvarint(make([]byte, 3), 1<<40)...)),
		"requests that end":      call(wire.OpSpend, raw(0, 0, 0, 3, 0, 1)),
		"an id that is too long": call(wire.OpSpend, request(stint.Request{Key: perID.Key(strings.Repeat("x", 513))})),
		"a mode that is none":    call(wire.OpSpend, raw(0, 0, 0, 1, 4, 1, 1, 'x', 0, 0, 0)),
		"a limit of no form":     call(wire.OpSpend, raw(0, 0, 0, 1, 0, 1, 1, 'x', 0, 5, 0, 0, 0, 0, 0, 0)),
		"no key":                 call(wire.OpBucket, raw(0, 0)),
		"a name over 65535":      call(wire.OpBuckets, raw(binary.AppendUvarint(nil, 1<<16)...)),
		"more than asked":        call(wire.OpFlush, raw(0)),
	} {
		t.Run(name, func(t *testing.T) {
			nc := dialRaw(t, path)
			require.NoError(t, errorOf(nc.Write(said)))
			closedSoon(t, nc)
			require.ErrorIs(t, events.wait(t, RoleOwner, true).Err, wire.ErrMessage)
			spend(t, polite, perID.Key("a"), 1)
		})
	}
	t.Run("another version", func(t *testing.T) {
		nc := dialRaw(t, path)
		hello := helloFrame()
		hello[9+len("stint\x00")]++
		require.NoError(t, errorOf(nc.Write(hello)))
		require.Contains(t, string(closedSoon(t, nc)), "version 12 of the protocol")
		require.ErrorIs(t, events.wait(t, RoleOwner, true).Err, ErrRefused)
	})
	t.Run("a guest that leaves", func(t *testing.T) {
		nc := dialRaw(t, path)
		require.NoError(t, errorOf(nc.Write(helloFrame())))
		require.NoError(t, nc.Close())
	})
	require.Equal(t, RoleGuest, polite.Role())
	require.NoError(t, polite.Health())
}

// A guest reads why an owner of another version refuses it. These bytes stay.
func TestRefusalOfAnotherVersion(t *testing.T) {
	path := filePath(t)
	openOn(t, path, limitsWith(t, nil), nil)
	const text = "hostlimit: refused: the guest has version 6 of the protocol, the owner 11"
	const length = "\x00\x00\x00\x53" // of what follows
	const reply = "\x03\x00\x00\x00\x00"
	const refused, refusedBefore = "\x80\x80\x20", "\x80\x80\x40" // the kind, now and in an older list

	nc := dialRaw(t, path)
	_, err := nc.Write([]byte("\x00\x00\x00\x0e\x01\x00\x00\x00\x00stint\x00\x06\x00\x00"))
	require.NoError(t, err)
	require.Equal(t, length+reply+"\x01"+refused+"\x49"+text, string(closedSoon(t, nc)))

	for _, kind := range []string{refused, refusedBefore} {
		_, err := connectTo([]byte(length+reply+"\x01"+kind+"\x49"+text), time.Minute)
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, ErrRefused)
		require.NotErrorIs(t, err, ErrNoOwner, "Open would try again")
	}

	_, err = connectTo([]byte("\x00\x00\x00\x05\x07\x00\x00\x00\x00"), time.Minute)
	require.ErrorIs(t, err, ErrNoOwner)
	require.ErrorContains(t, err, "closing", "a goodbye")
}

// An owner disconnects a guest that sends half a frame, and one that never
// reads.
func TestSlowGuest(t *testing.T) {
	if !testlength.Long {
		t.Skip("takes five seconds: run it with -tags long")
	}
	t.Parallel()
	path, limits := filePath(t), limitsWith(t, nil)
	events := newRecorder()
	openOn(t, path, limits, &Options{OnEvent: events.record})
	polite := openOn(t, path, limits, nil)
	half, unread := dialRaw(t, path), dialRaw(t, path)
	require.NoError(t, errorOf(half.Write(append(helloFrame(), 0, 0, 0))))
	closed := make(chan struct{})
	go func() {
		closedSoon(t, half)
		close(closed)
	}()
	defer func() { <-closed }()
	pings := bytes.Repeat(pingFrame(), 10_000)
	require.NoError(t, errorOf(unread.Write(helloFrame())))
	unread.SetWriteDeadline(time.Now().Add(20 * time.Second))
	var err error
	for err == nil {
		_, err = unread.Write(pings)
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the owner disconnects it")
	spend(t, polite, perID.Key("a"), 1)
}

// An owner serves MaxGuests guests, and refuses the next.
func TestManyGuests(t *testing.T) {
	t.Parallel()
	path, limits := filePath(t), limitsWith(t, nil)
	events := newRecorder()
	openOn(t, path, limits, &Options{MaxGuests: 50, OnEvent: events.record})
	polite := openOn(t, path, limits, nil)
	var all []net.Conn
	for range testlength.Of(1000, 200) {
		nc := dialRaw(t, path)
		_, err := nc.Write(helloFrame())
		if err == nil {
			all = append(all, nc)
		}
	}
	require.ErrorIs(t, events.wait(t, RoleOwner, true).Err, ErrRefused)
	_, err := Dial(path, nil, patient(nil))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "50 guests")
	spend(t, polite, perID.Key("a"), 1)
	for _, nc := range all {
		nc.Close()
	}
	for err = ErrRefused; err != nil; {
		var g *Limiter
		if g, err = Dial(path, nil, patient(nil)); err == nil {
			g.Close()
		} else {
			require.ErrorIs(t, err, ErrRefused)
		}
	}
}

// An owner that is stopped, as by a debugger, does not answer. Calls end with
// ErrNoAnswer or ErrNoOwner in time, and work again when it goes on.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	path := filePath(t)
	owner := startWorker(t, workerOptions{Path: path, Callers: 1, Limit: whole, ID: "a"}, false)
	owner.waitFor("owner", 1)
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: whole}})
	timeout := 300 * time.Millisecond
	guest := openOn(t, path, limits, &Options{
		TakeoverTimeout: timeout, LimiterOptions: stint.Options{LockTimeout: time.Minute}}) // the owner may be busy
	require.Equal(t, RoleGuest, guest.Role())
	require.NoError(t, owner.cmd.Process.Signal(syscall.SIGSTOP))
	calls := map[string]func() error{
		"spend":   func() error { _, err := guest.Spend(perID.Key("b"), 1); return err },
		"wait":    func() error { return errorOf(guest.Wait(t.Context(), perID.Key("b").Cost(1))) },
		"bucket":  func() error { _, err := guest.Bucket(perID.Key("b")); return err },
		"another": func() error { _, err := Dial(path, nil, &Options{TakeoverTimeout: timeout}); return err },
	}
	done := make(chan error)
	begun := time.Now()
	for _, call := range calls {
		go func() {
			err := call()
			for err == nil { // it is not stopped yet
				err = call()
			}
			done <- err
		}()
	}
	noAnswer := 0
	for range calls {
		select {
		case err := <-done:
			require.True(t, isAny(err, ErrNoAnswer, ErrNoOwner), "%v", err)
			if isAny(err, ErrNoAnswer) {
				noAnswer++
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a call hangs")
		}
	}
	require.Positive(t, noAnswer)
	t.Logf("the calls ended after %v", time.Since(begun))
	require.ErrorIs(t, errorOf(guest.Spend(perID.Key("b"), 1)), ErrNoOwner)
	_, err := Open(path, limits, &Options{TakeoverTimeout: timeout, LimiterOptions: stint.Options{LockTimeout: timeout}})
	require.ErrorIs(t, err, stint.ErrLocked)
	require.ErrorContains(t, err, "does not answer within 300ms")
	require.NoError(t, owner.cmd.Process.Signal(syscall.SIGCONT))
	for err != nil {
		_, err = guest.Spend(perID.Key("b"), 1)
	}
	require.Empty(t, owner.stop().Err)
}

// Two versions of a program have different limits for one key. Each keeps its
// own limit, and both together keep the larger one.
func TestTwoVersions(t *testing.T) {
	path := filePath(t)
	small, large := stint.PerHour(10), stint.PerHour(100)
	owner := openOn(t, path, limitsWith(t, map[stint.Name]stint.Limit{perID: small}), nil)
	guest := openOn(t, path, limitsWith(t, map[stint.Name]stint.Limit{perID: large}), nil)
	for _, order := range [][]*Limiter{{owner, guest}, {guest, owner}} {
		require.NoError(t, owner.Reset(perID.Key("a")))
		of := map[*Limiter]int{}
		for range 200 {
			for _, l := range order {
				d := spend(t, l, perID.Key("a"), 1)
				limit := l.Limits().For(perID.Key("a"))
				require.Equal(t, limit.Burst, d.Limit.Burst)
				if d.Allowed {
					of[l]++
				}
			}
		}
		require.LessOrEqual(t, of[owner], 10)
		require.LessOrEqual(t, of[owner]+of[guest], 100)
		require.GreaterOrEqual(t, of[guest], 10)
	}
	require.NoError(t, owner.Reset(perID.Key("a")))
	require.True(t, spend(t, guest, perID.Key("a"), 100).Allowed)
	for range 100 {
		require.False(t, spend(t, owner, perID.Key("a"), 1).Allowed)
		d := spend(t, guest, perID.Key("a"), 2)
		require.False(t, d.Allowed, "the smaller limit did not refill it")
	}
	require.Equal(t, large.Burst, bucket(t, guest, perID.Key("a")).Limit.Burst)
}

// A newer version of a program has a Name that the owner does not know.
func TestNewName(t *testing.T) {
	path := filePath(t)
	owner := openOn(t, path, limitsWith(t, nil), nil)
	names := stint.Names{perID: testNames[perID], 7: {Label: "New", Limit: stint.PerHour(3)},
		8: {Label: "All", IDs: stint.Single, Limit: stint.PerHour(1)}}
	limits := newLimits(t, names)
	guest := openOn(t, path, limits, nil)
	for left := int64(2); left >= 0; left-- {
		require.Equal(t, left, spend(t, guest, stint.Name(7).Key("a"), 1).Remaining)
	}
	require.NoError(t, guest.DoEach(context.Background(), []stint.Request{{Key: stint.Name(8).Key(""), Cost: 1}}, make([]stint.Decision, 1)))
	_, err := owner.Spend(stint.Name(7).Key("a"), 1)
	require.NoError(t, err, "it is declared now, and the owner has no limit for it")
	require.NoError(t, owner.SetLimits(limitsWith(t, nil)))
	require.False(t, spend(t, guest, stint.Name(7).Key("a"), 1).Allowed)

	for _, spec := range []stint.NameSpec{{Label: "Other", Limit: stint.Unlimited},
		{Label: "PerID", IDs: stint.Single, Limit: stint.Unlimited}} {
		wrong := newLimits(t, stint.Names{perID: spec})
		require.ErrorIs(t, errorOf(Open(path, wrong, nil)), stint.ErrNameMismatch)
		require.ErrorIs(t, errorOf(Dial(path, wrong.Names(), nil)), stint.ErrNameMismatch)
		require.ErrorIs(t, guest.SetLimits(wrong), stint.ErrNameMismatch)
	}
}

// A guest says hello while the owner has a Name only because another guest has
// declared it. Once the owner has dropped it with its next limits, the guest
// declares it.
func TestNewNameOfAnotherGuest(t *testing.T) {
	path := filePath(t)
	owner := openOn(t, path, limitsWith(t, nil), nil)
	limits := newLimits(t, stint.Names{7: {Label: "New", Limit: stint.PerHour(3)}})
	first := openOn(t, path, limits, nil)
	key := stint.Name(7).Key("a")
	spend(t, first, key, 1)
	second := openOn(t, path, limits, nil)
	require.NoError(t, first.Close())
	require.NoError(t, owner.SetLimits(limitsWith(t, nil)))
	require.EqualValues(t, 1, spend(t, second, key, 1).Remaining)
}

// The Names of a guest are declared when it connects. Then no other process gives one
// of the labels another number, or one of the numbers another label.
func TestNamesOfAGuest(t *testing.T) {
	path := filePath(t)
	owner := openOn(t, path, limitsWith(t, nil), nil)
	limits := newLimits(t, stint.Names{7: {Label: "New", Limit: stint.PerHour(3)}, 8: {Label: "Own", Limit: stint.PerHour(3)}})
	guest, other := openOn(t, path, limits, nil), openOn(t, path, limitsWith(t, nil), nil)
	for _, wrong := range []stint.Names{{9: {Label: "New", Limit: stint.Unlimited}}, {7: {Label: "Other", Limit: stint.Unlimited}}} {
		for _, l := range []*Limiter{owner, other} {
			require.ErrorIs(t, addNames(l, wrong), stint.ErrNameMismatch)
		}
		require.ErrorIs(t, errorOf(Open(path, newLimits(t, wrong), nil)), stint.ErrNameMismatch)
		require.ErrorIs(t, errorOf(Dial(path, wrong, nil)), stint.ErrNameMismatch)
	}
	require.NoError(t, owner.SetLimits(limitsWith(t, nil)))
	require.NoError(t, owner.SetOverrides(stint.Override{Key: perID.Key("x"), Limit: stint.PerHour(1)}))
	require.EqualValues(t, 2, spend(t, guest, stint.Name(8).Key("a"), 1).Remaining)
	require.NoError(t, guest.Close())
	require.NoError(t, owner.SetLimits(limitsWith(t, nil)))
	require.ErrorIs(t, addNames(owner, stint.Names{7: {Label: "Other"}}), stint.ErrNameMismatch, "it has its number for ever")
}

// A guest that starts while the owner's file is gone waits until the file is back, if
// it has new Names.
func TestNewNameWithoutFile(t *testing.T) {
	path := filePath(t)
	openOn(t, path, limitsWith(t, nil), nil)
	require.NoError(t, os.Remove(path))
	guest := openOn(t, path, newLimits(t, stint.Names{7: {Label: "New", Limit: stint.PerHour(3)}}),
		&Options{LimiterOptions: stint.Options{LockTimeout: time.Minute}})
	require.Equal(t, RoleGuest, guest.Role())
	spend(t, guest, stint.Name(7).Key("a"), 1)
}

// TestHostileLatency measures how much hostile guests slow the others down. By
// turns, a polite guest decides beside idle connections and beside hostile ones.
func TestHostileLatency(t *testing.T) {
	if !testlength.Long {
		t.Skip("it measures")
	}
	path, owner, polite := startOwner(t)
	attacks := [][]byte{
		bytes.Repeat([]byte{0xA5}, 1000), binary.BigEndian.AppendUint32(nil, 1<<31),
		append(helloFrame(), 0, 0, 0), helloFrame()[:5],
	}
	var conns []net.Conn
	idle, hostile := byTurns(t, polite, 40, func(attack int) {
		for _, nc := range conns {
			nc.Close()
		}
		conns = nil
		for i := range 100 {
			nc := dialRaw(t, path)
			conns = append(conns, nc)
			if attack == 1 {
				nc.Write(attacks[i%len(attacks)])
			}
		}
	})
	t.Logf("p99 %v beside idle connections, %v beside hostile ones: %.2f times", idle, hostile,
		float64(hostile)/float64(idle))
	require.Empty(t, owner.stop().Err)
}

// An owner bounds what a guest makes it keep. What is over the bound is refused,
// and the connection stays.
func TestBounds(t *testing.T) {
	t.Parallel()
	path, limits := filePath(t), limitsWith(t, nil)
	owner := openOn(t, path, limits, nil)
	key := perID.Key("a")
	day := stint.Limit{Burst: 1, Count: 1, Period: 24 * time.Hour, Queue: 1 << 20}
	_, err := owner.SpendAll(stint.Request{Key: key, Cost: 1, Limit: day})
	require.NoError(t, err)
	request := stint.Request{Key: key, Cost: 1, Limit: day}
	waiting := func() (n int) {
		for h := range owner.Held() {
			n = h.Waiting
		}
		return n
	}
	dial := func(t *testing.T) *Limiter { return dialOn(t, path, nil, &Options{TakeoverTimeout: time.Minute}) }
	empty := func(t *testing.T) {
		eventually(t, func() bool { return waiting() == 0 }, "a guest that is gone has no places")
	}
	t.Run("reservations", func(t *testing.T) {
		g := dial(t)
		for range maxReservations {
			require.NoError(t, errorOf(g.Reserve(request)))
		}
		require.ErrorIs(t, errorOf(g.Reserve(request)), ErrRefused)
		require.Equal(t, maxReservations, waiting())
		check(t, g, key)
		require.NoError(t, g.Close())
		empty(t)
	})
	t.Run("waits", func(t *testing.T) {
		g := dial(t)
		errs := make(chan error, maxWaits+1)
		for range maxWaits + 1 {
			go func() { errs <- errorOf(g.Wait(t.Context(), request)) }()
		}
		require.ErrorIs(t, <-errs, ErrRefused, "of one, while the others wait")
		eventually(t, func() bool { return waiting() == maxWaits }, "the others wait")
		require.NoError(t, g.Close())
		for range maxWaits {
			require.True(t, isAny(<-errs, stint.ErrClosed, ErrNoAnswer))
		}
		empty(t)
	})
	t.Run("names", func(t *testing.T) {
		names := make(stint.Names)
		for n := range 4000 {
			names[stint.Name(n+100)] = stint.NameSpec{Label: fmt.Sprint(strings.Repeat("x", 1000), n), Limit: stint.Unlimited}
		}
		_, err := Open(path, newLimits(t, names), nil)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "bytes of Names")
		g := dial(t)
		for _, part := range wire.Split(names) {
			if err = g.now.Load().conn.do(t.Context(), &wire.Call{Op: wire.OpDeclare, Names: part}); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, ErrRefused)
		require.Less(t, len(owner.now.Load().limiter.Limits().Names()), 2*maxNames/1000, "two connections have added some")
		check(t, g, key)
	})
}

// A hold delays reservations whose turn has come, too. Those that the guest has
// used long ago must not take the places of others until the hold ends.
func TestHoldAfterManyReservations(t *testing.T) {
	var passed atomic.Int64
	begun := time.Now()
	now := func() time.Time { return begun.Add(time.Duration(passed.Load())) }
	path, limits := filePath(t), limitsWith(t, nil)
	openOn(t, path, limits, &Options{LimiterOptions: stint.Options{Now: now}})
	guest := openOn(t, path, limits, nil)
	key := perID.Key("a")
	spend(t, guest, key, 100)
	for range maxReservations {
		require.NoError(t, errorOf(guest.Reserve(key.Cost(1))))
		passed.Add(int64(time.Hour / 100))
	}
	require.NoError(t, errorOf(guest.Hold(key, now().Add(time.Hour))))
	require.NoError(t, errorOf(guest.Reserve(perID.Key("b").Cost(1))))
}

// snapshotStore counts the copies that a Limiter makes.
type snapshotStore struct {
	stint.Store
	made atomic.Int64
}

func (s *snapshotStore) Snapshot(io.Writer) (int64, error) {
	s.made.Add(1)
	return 0, nil
}

// The owner makes no copy of the file for a guest that is gone.
func TestSnapshotsOfGuestsThatAreGone(t *testing.T) {
	store := &snapshotStore{Store: stint.NewMemStore()}
	l := inMemory(t, store, limitsWith(t, nil), nil)
	path := filePath(t)
	s, err := Serve(l, path, nil)
	require.NoError(t, err)
	s.snapshots <- struct{}{} // a copy is under way
	snapshot := append(helloFrame(), callFrame(1, wire.Call{Op: wire.OpSnapshot})...)
	all := make([]net.Conn, 20)
	for i := range all {
		all[i] = dialRaw(t, path)
		require.NoError(t, errorOf(all[i].Write(snapshot)))
	}
	busy := func() (n int) {
		for _, c := range connsOf(s) {
			c.mu.Lock()
			n += c.busy
			c.mu.Unlock()
		}
		return n
	}
	eventually(t, func() bool { return busy() == len(all) }, "they wait for their copies")
	for _, nc := range all {
		require.NoError(t, nc.Close())
	}
	eventually(t, func() bool { return len(connsOf(s)) == 0 }, "they are gone")
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	select { // while the copy is under way
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		<-s.snapshots
		<-closed
		t.Error("they wait on")
	}
	require.Zero(t, store.made.Load())
}

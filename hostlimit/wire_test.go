package hostlimit

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

func frame(o wire.Op, id uint32, f func(*wire.Body)) []byte {
	b, err := wire.AppendFrame(nil, o, id, f)
	if err != nil {
		panic(err)
	}
	return b
}

// callFrame is the frame of a call.
func callFrame(id uint32, c wire.Call) []byte { return frame(c.Op, id, c.Arguments) }

// answerFrame is the frame of its answer.
func answerFrame(id uint32, c wire.Call) []byte {
	return frame(wire.OpReply, id, func(b *wire.Body) {
		b.Error(new(error))
		c.Answer(b)
	})
}

// errorBody writes an answer that is an error.
func errorBody(err error) func(*wire.Body) { return func(b *wire.Body) { b.Error(&err) } }

// welcomeBody writes a welcome.
func welcomeBody(w wire.Welcome) func(*wire.Body) { return func(b *wire.Body) { b.Welcome(&w) } }

// helloFrame is the hello of a guest.
func helloFrame() []byte {
	return frame(wire.OpHello, 0, wire.WriteHello)
}

// pingFrame is a ping.
func pingFrame() []byte {
	asked := time.Second
	return frame(wire.OpPing, 0, func(b *wire.Body) { b.Ping(&asked) })
}

// eachFrame calls do with each frame that comes, until the connection ends.
func eachFrame(nc net.Conn, do func(f *wire.Frame)) {
	frames := wire.NewReader(nc)
	for f, err := frames.Next(); err == nil; f, err = frames.Next() {
		do(f)
	}
}

// connectTo makes a connection to an owner that says something, and nothing after it.
func connectTo(said []byte, timeout time.Duration) (*conn, error) {
	ours, theirs := net.Pipe()
	go io.Copy(io.Discard, theirs)
	go theirs.Write(said)
	return newConn(ours, nil, timeout, func(*conn, error) {})
}

// An owner answers any input or ends the connection, and stays healthy.
func FuzzOwner(f *testing.F) {
	req := stint.Request{Key: perID.Key("a"), Cost: 1, Limit: stint.PerHour(5)}
	reqs := []stint.Request{req}
	said := helloFrame()
	for i, c := range []wire.Call{
		{Op: wire.OpSpend, Requests: reqs}, {Op: wire.OpEach, Requests: reqs, Errs: make([]error, 1)}, {Op: wire.OpRefund, Requests: reqs},
		{Op: wire.OpBucket, Keys: []stint.Key{req.Key}}, {Op: wire.OpReserve, Requests: reqs}, {Op: wire.OpDelay, ID: 1},
		{Op: wire.OpCancel, ID: 1}, {Op: wire.OpWait, Requests: reqs, Within: 1}, {Op: wire.OpAbort}, {Op: wire.OpStats},
		{Op: wire.OpHealth}, {Op: wire.OpBuckets, Name: 1}, {Op: wire.OpHold, Keys: []stint.Key{req.Key}},
		{Op: wire.OpReset, Keys: []stint.Key{req.Key}}, {Op: wire.OpFlush}, {Op: wire.OpHeld}, {Op: wire.OpSnapshot},
		{Op: wire.OpSetHold, Keys: []stint.Key{req.Key}}, {Op: wire.OpDeclare}, {Op: wire.OpNames},
		{Op: wire.OpNumber, Label: "New"},
	} {
		f.Add(append(helloFrame(), callFrame(uint32(i+1), c)...))
		said = append(said, callFrame(uint32(i+1), c)...)
	}
	f.Add(append(said, pingFrame()...))
	limits := newLimits(f, testNames)
	l := inMemory(f, stint.NewMemStore(), limits, nil)
	s := &Server{limiter: l, ctx: f.Context(), maxGuests: 1, conns: make(map[*serverConn]bool), snapshots: make(chan struct{}, 1)}
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		c := newServerConn(s, theirs)
		done := make(chan struct{})
		go func() {
			c.serve(nil)
			close(done)
		}()
		read := make(chan struct{})
		go func() {
			io.Copy(io.Discard, ours)
			close(read)
		}()
		ours.Write(said)
		ours.Close()
		<-done
		<-read
		require.NoError(t, l.Health())
	})
}

// On any input a guest's calls end. A call that fails returns no Decision, and an
// allowed one has no RetryAfter.
func FuzzGuest(f *testing.F) {
	hello := frame(wire.OpReply, 0, welcomeBody(wire.Welcome{PID: 1}))
	d := stint.Decision{Allowed: true, Remaining: 3, Key: perID.Key("a"), Limit: stint.PerHour(5)}
	reqs := []stint.Request{{Key: perID.Key("a"), Cost: 1}}
	f.Add(append(hello, answerFrame(1, wire.Call{Op: wire.OpSpend, Requests: reqs, Decision: d})...))
	f.Add(append(hello, frame(wire.OpReply, 1, errorBody(stint.ErrNotDurable))...))
	f.Add(append(hello, frame(wire.OpBye, 0, nil)...))
	f.Add(append(hello, answerFrame(2, wire.Call{Op: wire.OpBucket, Bucket: &stint.Bucket{Key: perID.Key("a")}})...))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs)
		go func() {
			theirs.Write(said)
			theirs.Close()
		}()
		c, err := newConn(ours, nil, time.Second, func(*conn, error) {})
		if err != nil {
			return
		}
		g := guestOn(t, c)
		d, err := g.Spend(perID.Key("a"), 1)
		if err != nil {
			require.Zero(t, d)
		} else {
			require.True(t, !d.Allowed || d.RetryAfter == 0)
		}
		for _, call := range []wire.Call{
			{Op: wire.OpBucket, Keys: []stint.Key{perID.Key("a")}}, {Op: wire.OpStats}, {Op: wire.OpBuckets}, {Op: wire.OpHeld},
		} {
			c.do(context.Background(), &call)
		}
	})
}

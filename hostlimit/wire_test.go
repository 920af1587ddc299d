package hostlimit

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// helloFrame is the hello of a guest without Names.
func helloFrame() []byte {
	return appendFrame(nil, opHello, 0, func(b []byte) []byte {
		return appendNames(append(append(b, magic...),
			version), nil)
	})
}

// The read functions return what the append functions were given.
func TestWire(t *testing.T) {
	limit := stint.Limit{Burst: 5, Count: 2, Period: time.Hour, Queue: 7, Durability: stint.Leased}
	reqs := []stint.Request{
		{Key: perID.Key("a"), Cost: 3, Mode: stint.CheckOnly}, {Key: free.Key("b"), Cost: -1, Limit: limit},
		{Key: shared.Key(""), Limit: stint.Unlimited, Mode: stint.SpendOnly},
	}
	r := body{b: appendRequests(nil, reqs)}
	require.Equal(t, reqs, r.requests(nil))
	require.NoError(t, r.end())
	for _, d := range []stint.Decision{
		{}, {Allowed: true, Remaining: 9, ResetAfter: time.Hour, Key: reqs[1].Key, Limit: limit},
		{RetryAfter: time.Second, Key: reqs[0].Key, Limit: limit}, {Allowed: true, Remaining: 1<<63 - 1, Key: reqs[2].Key},
	} {
		r := body{b: appendDecision(nil, &d, reqs)}
		require.Equal(t, d, r.decision(reqs))
		require.NoError(t, r.end())
	}
	for _, kind := range kinds {
		r := body{b: appendError(nil, errors.Join(kind, errors.New("more")))}
		err := r.error()
		require.ErrorIs(t, err, kind)
		require.ErrorContains(t, err, "more")
		require.NoError(t, r.end())
	}
	k := stint.Bucket{Key: perID.Key("a"), Limit: limit, Remaining: 3, ResetAfter: time.Minute, HeldUntil: time.Unix(1, 5)}
	r = body{b: appendBucket(nil, &k)}
	require.Equal(t, k, r.bucket())
	names := []named{{1, "One", false}, {65535, "Shared", true}}
	r = body{b: appendNames(nil, names)}
	require.Equal(t, names, r.names())
}

// An owner answers any input or ends the connection, and stays healthy.
func FuzzOwner(f *testing.F) {
	frames := func(fs ...[]byte) (all []byte) {
		for _, one := range fs {
			all = append(all, one...)
		}
		return all
	}
	req := stint.Request{Key: perID.Key("a"), Cost: 1, Limit: stint.PerHour(5)}
	request := func(b []byte) []byte { return appendRequests(b, []stint.Request{req}) }
	f.Add(frames(helloFrame(), appendFrame(nil, opTogether, 1, request), appendFrame(nil, opEach, 2, request)))
	f.Add(frames(helloFrame(), appendFrame(nil, opRefund, 1, request),
		appendFrame(nil, opBucket, 2, func(b []byte) []byte {
			return appendKey(b, req.Key)
		})))
	f.Add(frames(helloFrame(), appendFrame(nil, opReserve, 1, func(b []byte) []byte { return appendRequest(b, &req) }),
		appendFrame(nil, opDelay, 2, appendInt(1)), appendFrame(nil, opCancel, 3, appendInt(1))))
	f.Add(frames(helloFrame(), appendFrame(nil, opWait, 1,
		func(b []byte) []byte { return append(appendRequest(b, &req), 1) }),
		appendFrame(nil, opAbort, 1, nil), appendFrame(nil, opStats, 2, nil), appendFrame(nil, opHealth, 3, nil)))
	f.Add(frames(helloFrame(), appendFrame(nil, opBuckets, 1, func(b []byte) []byte { return append(b, 1) }),
		appendFrame(nil, opHold, 2, func(b []byte) []byte { return append(appendKey(b, req.Key), 2) }),
		appendFrame(nil, opReset, 3, func(b []byte) []byte { return appendKey(append(b, 1), req.Key) }),
		appendFrame(nil, opFlush, 4, nil), appendFrame(nil, opPing, 5, nil)))
	limits, err := stint.NewLimits(testNames, nil, nil)
	require.NoError(f, err)
	l, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(f, err)
	f.Cleanup(func() { l.Close() })
	s := &Server{limiter: l, tell: func(Event) {}, maxGuests: 1, conns: make(map[*serverConn]bool)}
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		c := newServerConn(s, theirs)
		done := make(chan struct{})
		go func() {
			c.serve()
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
	hello := appendFrame(nil, opReply, 0, func(b []byte) []byte { return append(b, replyOK, 2, 2, 2, 0) })
	d := stint.Decision{Allowed: true, Remaining: 3, Key: perID.Key("a"), Limit: stint.PerHour(5)}
	reqs := []stint.Request{{Key: perID.Key("a"), Cost: 1}}
	f.Add(append(hello, appendFrame(nil, opReply, 1, func(b []byte) []byte {
		return appendDecision(appendDecision(append(b, replyOK), &d, reqs), &d, reqs)
	})...))
	f.Add(append(hello, appendFrame(nil, opReply, 1, func(b []byte) []byte {
		return appendError(append(b, replyError), stint.ErrNotDurable)
	})...))
	f.Add(append(hello, appendFrame(nil, opBye, 0, nil)...))
	f.Add(append(hello, appendFrame(nil, opReply, 1, func(b []byte) []byte { return append(b, replyNotDone) })...))
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
		defer c.close()
		d, err := remote{c}.one(opTogether, reqs[0])
		if err != nil {
			require.Zero(t, d)
		} else {
			require.True(t, !d.Allowed || d.RetryAfter == 0)
		}
		remote{c}.bucket(perID.Key("a"))
		remote{c}.stats()
		remote{c}.buckets(perID)
		remote{c}.held()
	})
}

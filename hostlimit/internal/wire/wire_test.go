package wire

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// readCall reads a call into the space of another one.
func readCall(o Op, r *Body) (*Call, error) {
	c := &Call{Op: OpHold, Requests: make([]stint.Request, 2, 5), Until: time.Unix(9, 9),
		Errs: make([]error, 1), Decisions: make([]stint.Decision, 1), Wrong: ErrZone}
	return c, c.Read(o, r)
}

// A call that was sent and answered is as it was.
func TestCall(t *testing.T) {
	limit := stint.Limit{Burst: 5, Count: 2, Period: time.Hour, Queue: 7, Durability: stint.Leased}
	reqs := []stint.Request{
		{Key: stint.Name(1).Key("a"), Cost: 3, Mode: stint.CheckOnly, Spent: time.Unix(7, 7)},
		{Key: stint.Name(65535).Key("b"), Cost: -1, Limit: limit},
		{Key: stint.Name(2).Key(""), Limit: stint.Unlimited, Mode: stint.SpendOnly},
	}
	ds := []stint.Decision{
		{Allowed: true, Taken: 3, Remaining: 9, ResetAfter: time.Hour, Key: reqs[0].Key, Limit: limit},
		{RetryAfter: time.Second, Key: reqs[1].Key, Limit: limit},
		{Allowed: true, Remaining: math.MaxInt64, Key: stint.Name(9).Key("the total"), Limit: limit},
	}
	for i := range ds {
		ds[i].SetAt(time.Unix(int64(i), 8))
	}
	at := time.Unix(1, 5)
	one := stint.Key{Name: 7, ID: strings.Repeat("x", MaxID)}
	for _, c := range []Call{
		{Op: OpSpend, Requests: reqs, Decisions: ds, Decision: ds[2]},
		{Op: OpSpend, Requests: reqs, Decision: stint.Decision{}, MayEnd: true},
		{Op: OpSpend, Requests: reqs, Decision: stint.Decision{}, MayEnd: true, Ended: true},
		{Op: OpEach, Requests: reqs[:2], Decisions: ds[:2], Errs: make([]error, 2)},
		{Op: OpRefund, Requests: reqs, Decision: ds[1]},
		{Op: OpBucket, Keys: []stint.Key{one}, Bucket: &stint.Bucket{Key: one, Limit: limit, Remaining: 3, HeldUntil: at}},
		{Op: OpBuckets, Name: 65535},
		{Op: OpHold, Keys: []stint.Key{one}, Until: at, Time: at},
		{Op: OpSetHold, Keys: []stint.Key{one}}, {Op: OpSetHold, Keys: []stint.Key{one}, Until: time.Unix(7, 0)},
		{Op: OpReset, Keys: []stint.Key{one, reqs[0].Key}},
		{Op: OpReserve, Requests: reqs[:1], ID: 3, Delay: time.Second},
		{Op: OpDelay, ID: 3, Delay: time.Second},
		{Op: OpWait, Requests: reqs[1:2], Within: -1, Decision: ds[1]},
		{Op: OpDeclare, Names: stint.Names{
			65535: {Label: "Two", IDs: stint.Single}}},
		{Op: OpNumber, Label: "Logins", Name: 65535},
		{Op: OpSnapshot, Size: 1 << 40},
	} {
		t.Run(fmt.Sprint(c.Op), func(t *testing.T) {
			read, err := readCall(c.Op, NewBody(Append(nil, c.Arguments)))
			require.NoError(t, err)
			got := c
			got.Decisions, got.Errs = make([]stint.Decision, len(c.Decisions)), slices.Clone(c.Errs)
			if c.Decisions == nil {
				got.Decisions = nil
			}
			require.NoError(t, got.ReadAnswer(NewBody(Append(nil, c.Answer))))
			got.Buckets = nil
			require.Equal(t, c, got)
			require.Equal(t, Append(nil, c.Arguments), Append(nil, read.Arguments))
		})
	}
	t.Run("each", func(t *testing.T) {
		c := Call{Op: OpEach, Requests: reqs, Decisions: make([]stint.Decision, 3), Errs: []error{nil, ErrZone, nil}}
		read, err := readCall(OpEach, NewBody(Append(nil, c.Arguments)))
		require.NoError(t, err)
		require.Len(t, read.Requests, 2, "one has an error already")
		read.Decisions, read.Errs[1] = ds[:2], stint.ErrFull
		require.NoError(t, c.ReadAnswer(NewBody(Append(nil, read.Answer))))
		require.Equal(t, []stint.Decision{ds[0], {}, {}}, c.Decisions)
		require.Equal(t, ErrZone, c.Errs[1])
		require.ErrorIs(t, c.Errs[2], stint.ErrFull)
	})
	t.Run("stats", func(t *testing.T) {
		st := stint.Stats{Limits: map[stint.Name]stint.LimitStats{3: {Allowed: 1}}, Resident: 4,
			Flush: stint.SaveStats{Saves: 5, Last: time.Second}}
		var long bytes.Buffer
		require.NoError(t, (&Call{Op: OpStats, Stats: &st}).WriteLong(&long))
		got := Call{Op: OpStats}
		require.NoError(t, got.ReadAnswer(NewBody(long.Bytes())))
		require.Equal(t, st, *got.Stats)
	})
	t.Run("quotas", func(t *testing.T) {
		berlin, err := time.LoadLocation("Europe/Berlin")
		require.NoError(t, err)
		for _, l := range []stint.Limit{
			stint.EachMonth(1000, berlin), stint.EachDay(7, nil).StartingAt(4 * time.Hour),
			stint.EachWeek(5, time.FixedZone("x", 3600)), stint.EachHour(5, time.Local),
		} {
			l.Durability = stint.Leased
			q := stint.Request{Key: one, Limit: l}
			require.NoError(t, checkRequest(&q))
			r := NewBody(Append(nil, func(b *Body) { b.request(&q) }))
			var read stint.Request
			r.request(&read)
			require.Equal(t, q, read)
			require.NoError(t, r.End())
			require.NoError(t, r.zone)
		}
		require.Error(t, checkRequest(&stint.Request{Limit: stint.EachDay(5, nil).StartingAt(25 * time.Hour)}))
		none := strings.Replace(string(Append(nil, (&Call{Op: OpEach, Errs: make([]error, 2), Requests: []stint.Request{
			{Key: one, Limit: stint.EachDay(5, berlin)}, {Key: one}}}).Arguments)), "Europe/Berlin", "Europe/Brelin", 1)
		strange, err := readCall(OpEach, NewBody([]byte(none)))
		require.NoError(t, err)
		require.ErrorIs(t, strange.Errs[0], ErrZone)
		require.NoError(t, strange.Errs[1])
		none = strings.Replace(string(Append(nil, (&Call{Op: OpReserve, Requests: []stint.Request{
			{Key: one, Limit: stint.EachDay(5, berlin)}}}).Arguments)), "Europe/Berlin", "Asia/Tashkent", 1)
		strange, err = readCall(OpReserve, NewBody([]byte(none)))
		require.NoError(t, err)
		require.ErrorIs(t, strange.Wrong, ErrZone)
		require.ErrorContains(t, strange.Wrong, "periods of 5/day@Asia/Tashkent differ")
	})
	t.Run("too long", func(t *testing.T) {
		long := Call{Op: OpSpend, Requests: make([]stint.Request, MaxRequests)}
		for i := range long.Requests {
			long.Requests[i] = stint.Request{Key: one, Cost: math.MinInt64, Limit: limit}
		}
		require.NoError(t, long.Check(false))
		_, err := AppendFrame(nil, OpSpend, 1, long.Arguments)
		require.NoError(t, err, "what Check accepts fits into a frame")
		long.Requests = append(long.Requests, stint.Request{})
		require.ErrorIs(t, long.Check(false), ErrTooLong)
		require.ErrorContains(t, long.Check(false), "257 requests")
		b, err := AppendFrame([]byte("kept"), OpPart, 1, func(b *Body) { b.Raw(make([]byte, MaxFrame)) })
		require.ErrorIs(t, err, ErrTooLong)
		require.Equal(t, "kept", string(b))
		require.ErrorIs(t, (&Call{Op: OpBucket, Keys: []stint.Key{{ID: one.ID + "x"}}}).Check(false), stint.ErrInvalidID)
	})
	t.Run("names", func(t *testing.T) {
		names, got := make(stint.Names), make(stint.Names)
		for n := range 40_000 {
			names[stint.Name(n)] = stint.NameSpec{Label: fmt.Sprint("Label ", n)}
		}
		parts := Split(names)
		for _, part := range parts {
			b, err := AppendFrame(nil, OpDeclare, 0, func(b *Body) { b.names(&part) })
			require.NoError(t, err)
			require.Less(t, len(b), 2*PartSize)
			r := NewBody(b[headerLen:])
			var some stint.Names
			r.names(&some)
			require.NoError(t, r.End())
			maps.Copy(got, some)
		}
		require.Equal(t, names, got)
		require.Empty(t, Split(nil))
	})
}

// crossed returns an error that was written and read, and what is left of the message.
func crossed(err error) (left *Body, read error) {
	left = NewBody(Append(nil, func(b *Body) { b.Error(&err) }))
	left.Error(&read)
	return left, read
}

// Each error that package stint or hostlimit exports is the same error after it
// has crossed the socket.
func TestErrors(t *testing.T) {
	for _, kind := range kinds {
		r, err := crossed(errors.Join(kind, errors.New("more")))
		require.ErrorIs(t, err, kind)
		require.ErrorContains(t, err, "more")
		require.NoError(t, r.End())
		for _, other := range kinds {
			require.Equal(t, other == kind, errors.Is(err, other))
		}
	}
	_, err := crossed(nil)
	require.NoError(t, err)
	config := (*stint.ConfigError)(nil)
	_, err = crossed(stint.Limit{Burst: 1}.Validate())
	require.ErrorAs(t, err, &config)
	_, long := crossed(errors.New(strings.Repeat("x", 5000)))
	require.Len(t, long.Error(), maxErrorText)

	api, err := os.ReadFile("../../../docs/api.txt")
	require.NoError(t, err)
	exported := regexp.MustCompile(`(?m)^stint(/hostlimit)?: var (Err\w+)$`).FindAllStringSubmatch(string(api), -1)
	require.Contains(t, exported, []string{"stint: var ErrBlocked", "", "ErrBlocked"})
	require.Contains(t, exported, []string{"stint/hostlimit: var ErrNoAnswer", "/hostlimit", "ErrNoAnswer"})
	source, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	carried := regexp.MustCompile(`(?s)var kinds = .*?\n}`).Find(source)
	for _, name := range exported {
		require.Regexp(t, `\b`+name[2]+`\b`, string(carried), "add it to kinds")
	}
}

// Another process cannot fill the memory of this one with calendars.
func TestManyCalendars(t *testing.T) {
	met := quotas
	defer func() { quotas = met }()
	quotas = make(map[string]stint.Limit)
	for i := range mostCalendars {
		_, err := quotaOf(fmt.Sprintf("5/day from %dns", 1+i))
		require.NoError(t, err)
	}
	_, err := quotaOf("5/day from 1s")
	require.ErrorContains(t, err, "5/day from 1s is one of more than 10000 calendars")
	quota, err := quotaOf("7/day from 1ns")
	require.NoError(t, err, "it is known")
	require.Equal(t, stint.EachDay(5, nil).StartingAt(1), quota, "with any numbers")

	clear(quotas)
	for _, bad := range []string{"5/day from 24h", "5/day@Nowhere", "5/5/day", "x/day", "0/day"} {
		_, err := quotaOf(bad)
		require.Error(t, err, bad)
	}
	require.Empty(t, quotas)
}

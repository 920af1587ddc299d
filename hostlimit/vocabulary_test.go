package hostlimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit/statuspage"
)

// What a program does with a *stint.Limiter it does with a *Limiter of this
// package: the methods have the same names and types.
func TestVocabulary(t *testing.T) {
	theirs, ours := reflect.ValueOf((*stint.Limiter)(nil)), reflect.ValueOf((*Limiter)(nil))
	missing := map[string]bool{"InPlace": true, "Declare": true} // are for the owner of a file
	for i := range theirs.NumMethod() {
		name := theirs.Type().Method(i).Name
		got := ours.MethodByName(name)
		if missing[name] {
			require.False(t, got.IsValid(), name)
			continue
		}
		require.True(t, got.IsValid(), "%s is missing", name)
		require.Equal(t, theirs.Method(i).Type(), got.Type(), name)
	}
}

// vocabulary is the methods of a *stint.Limiter.
type vocabulary interface {
	statuspage.Limiter
	Check(key stint.Key, cost int64) (stint.Decision, error)
	Spend(key stint.Key, cost int64) (stint.Decision, error)
	SetHold(key stint.Key, until time.Time) error
	Reset(keys ...stint.Key) error
	Buckets(name stint.Name) iter.Seq2[stint.Bucket, error]
	Flush() error
	SetLimits(limits *stint.Limits) error
	SetOverrides(overrides ...stint.Override) error
	Snapshot(w io.Writer) (int64, error)
	Number(label string) (stint.Name, error)
	Allow(key stint.Key) bool
	Prefetch(key stint.Key)
	SpendAll(reqs ...stint.Request) (stint.Decision, error)
	DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error
	Reserve(req stint.Request) (stint.Reservation, error)
	Close() error
}

var (
	_ vocabulary = (*stint.Limiter)(nil)
	_ vocabulary = (*Limiter)(nil)
)

// The same calls have the same answers from a *stint.Limiter, an owner and a
// guest.
func TestSameAnswers(t *testing.T) {
	t.Parallel()
	const (
		blocked stint.Name = 4
		total   stint.Name = 5
		class   stint.Name = 6
		quota   stint.Name = 7
		late    stint.Name = 9
	)
	names := stint.Names{
		perID: testNames[perID], shared: testNames[shared], free: testNames[free],
		blocked: {Label: "Blocked", Limit: stint.Blocked},
		total:   {Label: "Total", IDs: stint.Single, Limit: stint.PerHour(100)},
		class:   {Label: "Class", Limit: stint.PerHour(50)},
		quota:   {Label: "Quota", Limit: stint.EachYear(10, time.UTC)},
	}
	limits := newLimits(t, names)
	now := time.Date(2027, 5, 6, 7, 8, 9, 0, time.UTC) // stands still
	options := stint.Options{Now: func() time.Time { return now }, Durability: stint.Flushed}
	alone := openAlone(t, filePath(t), limits, &options)
	owner := openOn(t, filePath(t), limits, &Options{LimiterOptions: options})
	path := filePath(t)
	openOn(t, path, limits, &Options{LimiterOptions: options})
	guest := openOn(t, path, limits, &Options{LimiterOptions: options})
	require.Equal(t, []Role{RoleOwner, RoleGuest}, []Role{owner.Role(), guest.Role()})

	a, none, long := perID.Key("a"), stint.Name(99).Key("a"), perID.Key(strings.Repeat("x", 600))
	strange := []stint.Key{none, long, perID.Key(""), shared.Key("a"), blocked.Key("a"), total.Key(""), class.Key("a"),
		quota.Key("a"), free.Key("a")}
	given := stint.Request{Key: a, Cost: 1, Limit: stint.PerDay(7)}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	type call struct {
		name string
		do   func(l vocabulary) (any, error)
	}
	var calls []call
	add := func(name string, do func(l vocabulary) (any, error)) { calls = append(calls, call{name, do}) }
	forKeys := func(name string, do func(l vocabulary, key stint.Key) (any, error)) {
		for i, key := range append([]stint.Key{a}, strange...) {
			if strings.HasSuffix(name, " -1") && (key.Name == 99 || len(key.ID) != 1) {
				continue // has two mistakes, and either may be reported
			}
			add(fmt.Sprintf("%s of key %d (Name %d)", name, i, key.Name), func(l vocabulary) (any, error) { return do(l, key) })
		}
	}
	forKeys("Prefetch", func(l vocabulary, key stint.Key) (any, error) {
		l.Prefetch(key)
		return l.Stats().Limits, nil
	})
	forKeys("Allow", func(l vocabulary, key stint.Key) (any, error) { return l.Allow(key), nil })
	for _, cost := range []int64{0, 1, 3, -1, 1000} {
		spend := fmt.Sprint(cost)
		forKeys("Spend "+spend, func(l vocabulary, key stint.Key) (any, error) { return l.Spend(key, cost) })
		forKeys("Check "+spend, func(l vocabulary, key stint.Key) (any, error) { return l.Check(key, cost) })
		forKeys("UpTo "+spend, func(l vocabulary, key stint.Key) (any, error) {
			return l.SpendAll(stint.Request{Key: key, Cost: cost, Mode: stint.UpTo})
		})
		forKeys("Refund "+spend, func(l vocabulary, key stint.Key) (any, error) {
			return l.Refund(key.Cost(cost).SpentAt(l.Now()))
		})
		forKeys("Reserve "+spend, func(l vocabulary, key stint.Key) (any, error) {
			p, err := l.Reserve(key.Cost(cost))
			if err != nil {
				return nil, err
			}
			defer p.Cancel()
			return p.Delay(), nil
		})
		forKeys("Wait, ended, "+spend, func(l vocabulary, key stint.Key) (any, error) { return nil, errorOf(l.Wait(ended, key.Cost(cost))) })
	}
	add("Reserve", func(l vocabulary) (any, error) {
		p, err := l.Reserve(given)
		defer p.Cancel()
		return p.Delay(), err
	})
	bad := given
	bad.Limit.Durability = 200
	add("SpendAll, bad level", func(l vocabulary) (any, error) { return l.SpendAll(bad) })
	add("Reserve, bad level", func(l vocabulary) (any, error) { return nil, errorOf(l.Reserve(bad)) })
	add("Wait", func(l vocabulary) (any, error) {
		d, err := l.Wait(t.Context(), given)
		return d, err
	})
	add("Do, ended", func(l vocabulary) (any, error) { return l.Do(ended, []stint.Request{a.Cost(1)}, nil) })
	add("UpTo, given", func(l vocabulary) (any, error) {
		req := given
		req.Mode = stint.UpTo
		return l.SpendAll(req)
	})
	add("UpTo of two", func(l vocabulary) (any, error) {
		return l.SpendAll(given, stint.Request{Key: free.Key("a"), Cost: 1, Mode: stint.UpTo})
	})
	add("SpendAll of none", func(l vocabulary) (any, error) { return l.SpendAll() })
	add("Refund of none", func(l vocabulary) (any, error) { return l.Refund() })
	add("DoEach of none", func(l vocabulary) (any, error) { return nil, l.DoEach(context.Background(), nil, nil) })
	add("Do of none", func(l vocabulary) (any, error) { return l.Do(context.Background(), nil, nil) })
	add("Do, no space", func(l vocabulary) (any, error) {
		return l.Do(context.Background(), []stint.Request{given}, make([]stint.Decision, 0))
	})
	add("DoEach, no space", func(l vocabulary) (any, error) {
		return nil, l.DoEach(context.Background(), []stint.Request{given}, nil)
	})
	add("DoEach of all", func(l vocabulary) (any, error) {
		reqs, ds := []stint.Request{given}, make([]stint.Decision, 1+len(strange))
		for _, key := range strange {
			reqs = append(reqs, stint.Request{Key: key, Cost: 1})
		}
		err := l.DoEach(context.Background(), reqs, ds)
		return ds, err
	})
	add("Do of some", func(l vocabulary) (any, error) {
		reqs := []stint.Request{given, {Key: class.Key("b"), Cost: 2}, {Key: free.Key("a"), Cost: 1}, {Key: quota.Key("b"), Cost: 1}}
		ds := make([]stint.Decision, len(reqs))
		d, err := l.Do(context.Background(), reqs, ds)
		return []any{d, ds}, err
	})
	forKeys("Bucket", func(l vocabulary, key stint.Key) (any, error) { return l.Bucket(key) })
	forKeys("Hold", func(l vocabulary, key stint.Key) (any, error) {
		at, err := l.Hold(key, now.Add(time.Minute))
		return at.UnixNano(), err
	})
	forKeys("Hold, shorter", func(l vocabulary, key stint.Key) (any, error) {
		at, err := l.Hold(key, now.Add(time.Second))
		return at.UnixNano(), err
	})
	buckets := func(name string) {
		for n := range stint.Name(11) {
			add(fmt.Sprint("Buckets of ", n, name), func(l vocabulary) (any, error) { return sorted(l.Buckets(n)) })
		}
		add("Held"+name, func(l vocabulary) (any, error) {
			var all []string
			for h := range l.Held() {
				all = append(all, fmt.Sprint(h.Key, h.HeldUntil.UnixNano(), h.Waiting))
			}
			slices.Sort(all)
			return all, nil
		})
	}
	buckets("")
	forKeys("SetHold", func(l vocabulary, key stint.Key) (any, error) { return nil, l.SetHold(key, time.Time{}) })
	forKeys("Reset", func(l vocabulary, key stint.Key) (any, error) { return nil, l.Reset(key) })
	add("Reset of none", func(l vocabulary) (any, error) { return nil, l.Reset() })
	add("Durability", func(l vocabulary) (any, error) { return l.Durability(), nil })
	add("Limits", func(l vocabulary) (any, error) { return len(l.Limits().Names()), nil })
	add("Now", func(l vocabulary) (any, error) { return l.Now().Sub(now) < time.Minute, nil })
	add("Declare", func(l vocabulary) (any, error) {
		return nil, addNames(l, stint.Names{late: {Label: "Late", Limit: stint.PerHour(3)}})
	})
	add("Spend of a late Name", func(l vocabulary) (any, error) { return l.Spend(late.Key("a"), 1) })
	add("Declare again", func(l vocabulary) (any, error) {
		return nil, addNames(l, stint.Names{late: {Label: "Other", Limit: stint.PerHour(3)}})
	})
	add("Declare a taken label", func(l vocabulary) (any, error) {
		return nil, addNames(l, stint.Names{10: {Label: "PerID", Limit: stint.PerHour(3)}})
	})
	for _, label := range []string{"PerID", "Seen", "Seen", ""} {
		add("Number of "+label, func(l vocabulary) (any, error) { return l.Number(label) })
	}
	add("SetOverrides", func(l vocabulary) (any, error) {
		return nil, l.SetOverrides(stint.Override{Key: perID.Key("a"), Limit: stint.Blocked})
	})
	add("Spend of an override", func(l vocabulary) (any, error) { return l.Spend(a, 1) })
	add("Bucket of an override", func(l vocabulary) (any, error) { return l.Bucket(a) })
	add("SetOverrides of no Name", func(l vocabulary) (any, error) {
		return nil, l.SetOverrides(stint.Override{Key: stint.Name(99).Key("a"), Limit: stint.Blocked})
	})
	add("SetOverrides of a bad limit", func(l vocabulary) (any, error) {
		return nil, l.SetOverrides(stint.Override{Key: perID.Key("a"), Limit: stint.Limit{Burst: -1}})
	})
	add("SetLimits of none", func(l vocabulary) (any, error) { return nil, l.SetLimits(nil) })
	add("SetLimits of another label", func(l vocabulary) (any, error) {
		other := newLimits(t, stint.Names{perID: {Label: "Other", Limit: stint.PerHour(1)}})
		return nil, l.SetLimits(other)
	})
	add("Flush", func(l vocabulary) (any, error) { return nil, l.Flush() })
	add("Health", func(l vocabulary) (any, error) { return nil, l.Health() })
	add("Snapshot", func(l vocabulary) (any, error) {
		var copied bytes.Buffer
		n, err := l.Snapshot(&copied)
		return n > 0 && n == int64(copied.Len()), err
	})
	add("Snapshot, no space", func(l vocabulary) (any, error) {
		_, err := l.Snapshot(fullWriter{})
		return errors.Is(err, io.ErrShortWrite), nil
	})
	add("Stats", func(l vocabulary) (any, error) {
		counts := l.Stats().Limits
		for name, c := range counts {
			if c.Errors = 0; c == (stint.LimitStats{}) { // a guest finds some mistakes itself
				delete(counts, name)
			} else {
				counts[name] = c
			}
		}
		return fmt.Sprint(counts, l.Stats().File.Bytes > 0), l.Stats().Err
	})
	buckets(" at the end")
	add("Close", func(l vocabulary) (any, error) { return nil, l.Close() })
	add("closed Spend", func(l vocabulary) (any, error) { return l.Spend(a, 1) })
	add("closed Allow", func(l vocabulary) (any, error) { return l.Allow(a), nil })
	add("closed SetLimits", func(l vocabulary) (any, error) { return nil, l.SetLimits(limits) })
	add("closed Number", func(l vocabulary) (any, error) { return l.Number("PerID") })
	add("closed Declare", func(l vocabulary) (any, error) { return nil, addNames(l, stint.Names{}) })
	add("closed Hold", func(l vocabulary) (any, error) { return nil, errorOf(l.Hold(a, now)) })
	add("closed Bucket", func(l vocabulary) (any, error) { return l.Bucket(a) })
	add("closed Buckets", func(l vocabulary) (any, error) { return sorted(l.Buckets(perID)) })
	add("closed Snapshot", func(l vocabulary) (any, error) { return l.Snapshot(io.Discard) })
	add("closed Wait", func(l vocabulary) (any, error) { return nil, errorOf(l.Wait(t.Context(), a.Cost(1))) })
	add("closed Flush", func(l vocabulary) (any, error) { return nil, l.Flush() })
	add("closed Close", func(l vocabulary) (any, error) { return nil, l.Close() })

	for _, c := range calls {
		want := fmt.Sprintf("%+v", answerOf(c.do(alone)))
		for who, l := range map[string]vocabulary{"owner": owner, "guest": guest} {
			if got := fmt.Sprintf("%+v", answerOf(c.do(l))); got != want {
				t.Errorf("%s of the %s:\n%s\nof a *stint.Limiter:\n%s", c.name, who, got, want)
			}
		}
	}
}

// A process uses only Names that it declares, even if the owner has others.
func TestNameOfTheOwner(t *testing.T) {
	path, names := filePath(t), stint.Names{perID: testNames[perID]}
	limits := newLimits(t, names)
	owner, guest := openOn(t, path, limitsWith(t, nil), nil), openOn(t, path, limits, nil)
	require.Equal(t, RoleGuest, guest.Role())
	key := shared.Key("")
	spend(t, owner, key, 3)
	require.NoError(t, owner.Flush())
	for name, call := range map[string]func() error{
		"Spend":   func() error { _, err := guest.Spend(key, 1); return err },
		"Bucket":  func() error { _, err := guest.Bucket(key); return err },
		"Hold":    func() error { return errorOf(guest.Hold(key, time.Now().Add(time.Hour))) },
		"SetHold": func() error { return guest.SetHold(key, time.Time{}) },
		"Reset":   func() error { return guest.Reset(perID.Key("a"), key) },
	} {
		require.ErrorIs(t, call(), stint.ErrUnknownName, name)
	}
	b := bucket(t, owner, key)
	require.EqualValues(t, 7, b.Remaining)
	require.Zero(t, b.HeldUntil)
}

// What Dial returns decides under the owner's limits, and cannot change them.
func TestLimitsOfTheOwner(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	owner := openOn(t, path, limits, nil)
	guest := dialOn(t, path, limits.Names(), nil)
	require.Equal(t, []any{RoleGuest, os.Getpid()}, []any{guest.Role(), guest.OwnerPID()})
	require.Equal(t, limits.Names()[perID].Label, guest.Limits().Names()[perID].Label)
	want := limits.For(perID.Key("a"))
	require.Equal(t, want, spend(t, guest, perID.Key("a"), 1).Limit)
	require.ErrorIs(t, guest.SetLimits(limits), errors.ErrUnsupported)
	require.ErrorIs(t, guest.SetOverrides(stint.Override{Key: perID.Key("a"), Limit: stint.PerHour(1)}), errors.ErrUnsupported)
	require.NoError(t, owner.Close())
	require.Eventually(t, func() bool { return guest.Role() == RoleNone && guest.OwnerPID() == 0 }, time.Minute, time.Millisecond)
	require.ErrorIs(t, errorOf(guest.Spend(perID.Key("a"), 1)), ErrNoOwner)
	require.NoError(t, guest.Close())
	require.ErrorIs(t, errorOf(guest.Spend(perID.Key("a"), 1)), stint.ErrClosed)
}

// fullWriter is a Writer without space.
type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// answerOf returns an answer with the kinds of its error, whose text may differ.
func answerOf(answer any, err error) []any {
	if err == nil {
		return []any{answer}
	}
	kinds := []any{answer, "error", errors.As(err, new(*stint.ConfigError))}
	for _, kind := range []error{
		stint.ErrClosed, stint.ErrUnknownName, stint.ErrInvalidID, stint.ErrNegativeCost, stint.ErrCostOverBurst,
		stint.ErrDuplicateKey, stint.ErrQueueFull, stint.ErrBlocked, errors.ErrUnsupported, stint.ErrNotDurable,
		stint.ErrFull, stint.ErrGone, stint.ErrNameMismatch, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// sorted returns buckets as text in order, and the first error.
func sorted(buckets iter.Seq2[stint.Bucket, error]) (all []string, err error) {
	for b, err := range buckets {
		if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("%+v", b))
	}
	slices.Sort(all)
	return all, nil
}

package decidertest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// caseHistory makes random calls of the Decider and of a *stint.Limiter in
// memory, and requires the same answers.
func caseHistory(e *env) {
	seeds := uint64(8)
	if e.level >= stint.Leased { // each call may be a commit
		seeds = 2
	}
	for seed := range seeds {
		runHistory(e, seed, 120)
	}
}

func runHistory(e *env, seed uint64, steps int) {
	e.open()
	model, err := stint.New(stint.NewMemStore(), usualLimits(e), &stint.Options{Durability: stint.Memory, Now: e.clock.now})
	require.NoError(e, err)
	defer model.Close()
	h := &history{e: e, model: model, rand: rand.New(rand.NewPCG(seed, 1))}
	for step := range steps {
		what, same := h.step()
		require.True(e, same, "seed %d, step %d: %s", seed, step, what)
		require.False(e, e.failed.Load(), "seed %d, step %d: %s", seed, step, what)
	}
}

type history struct {
	e     *env
	model *stint.Limiter
	rand  *rand.Rand
}

func (h *history) key() stint.Key {
	keys := []stint.Key{plain.Key("a"), plain.Key("b"), plain.Key("vip"), other.Key("a"), everyone.Key(""), off.Key("a"),
		shut.Key("a"), plain.Key("bad"), plain.Key("free")}
	return keys[h.rand.IntN(len(keys))]
}

func (h *history) request() stint.Request {
	r := stint.Request{
		Key: h.key(), Cost: int64(h.rand.IntN(4)), Mode: stint.Mode(h.rand.IntN(3)), Spent: inFuture,
	}
	if h.rand.IntN(40) == 0 {
		r.Cost = int64(h.rand.IntN(10) - 1)
	}
	if h.rand.IntN(3) == 0 {
		r.Leave = int64(h.rand.IntN(4))
	}
	return r
}

// step makes one call, and reports whether both answer it alike.
func (h *history) step() (what string, same bool) {
	e, key, cost := h.e, h.key(), int64(h.rand.IntN(5))
	// Of several mistakes in one call, Deciders report different ones.
	fails := func(want, got error) bool {
		require.Equal(e, want != nil, got != nil, "%v, want %v", got, want)
		return true
	}
	decisions := func(want, got stint.Decision, wantErr, gotErr error) bool {
		require.Equal(e, want, got)
		return fails(wantErr, gotErr)
	}
	switch n := h.rand.IntN(22); {
	case n < 5:
		e.clock.pass(time.Duration(h.rand.Int64N(int64(20 * time.Second))))
		return "time passes", true
	case n < 9:
		want, wantErr := h.model.Spend(key, cost)
		got, gotErr := e.Spend(key, cost)
		return "Spend", decisions(want, got, wantErr, gotErr)
	case n < 11:
		want, wantErr := h.model.Check(key, cost)
		got, gotErr := e.Check(key, cost)
		return "Check", decisions(want, got, wantErr, gotErr)
	case n < 15:
		reqs := make([]stint.Request, 1+h.rand.IntN(4))
		for i := range reqs {
			reqs[i] = h.request()
		}
		if len(reqs) == 1 && h.rand.IntN(4) == 0 {
			reqs[0].Mode = stint.UpTo
		}
		want, got := make([]stint.Decision, len(reqs)), make([]stint.Decision, len(reqs))
		wantD, wantErr := h.model.Do(context.Background(), reqs, want)
		gotD, gotErr := e.Do(context.Background(), reqs, got)
		require.Equal(e, want, got)
		return "Do", decisions(wantD, gotD, wantErr, gotErr)
	case n < 17:
		req := h.request()
		req.Cost = max(0, req.Cost)
		want, wantErr := h.model.Refund(req)
		got, gotErr := e.Refund(req)
		return "Refund", decisions(want, got, wantErr, gotErr)
	case n < 19:
		want, wantErr := h.model.Bucket(key)
		got, gotErr := e.Bucket(key)
		require.True(e, want.HeldUntil.Equal(got.HeldUntil), "held until %v, want %v", got.HeldUntil, want.HeldUntil)
		got.HeldUntil = want.HeldUntil
		require.Equal(e, want, got)
		return "Bucket", fails(wantErr, gotErr)
	}
	if key.Name == off || key.ID == "free" || !e.subject.has(Holds) {
		return "no hold", true // not all Deciders have it
	}
	until := e.clock.now().Add(time.Duration(h.rand.Int64N(int64(time.Minute))) - 20*time.Second)
	switch h.rand.IntN(6) {
	case 0:
		until = time.Time{}
		fallthrough
	case 1, 2:
		return "SetHold", fails(h.model.SetHold(key, until), e.SetHold(key, until))
	}
	want, wantErr := h.model.Hold(key, until)
	got, gotErr := e.Hold(key, until)
	require.True(e, want.Equal(got), "held until %v, want %v", got, want)
	return "Hold", fails(wantErr, gotErr)
}

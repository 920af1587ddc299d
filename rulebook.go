package stint

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/idmap"
)

// rulebook has each limit once. A rule keeps its index, so an index means the
// same rule under all Limits that share the book.
type rulebook struct {
	mu     sync.Mutex
	rules  []gcra.Rule // append-only
	index  map[Limit]uint32
	most   int // number of rules that there can be
	tidyAt int // number of rules from which tidied looks for those that are in use
}

const (
	maxRules = 1 << 26 // a slot has 26 bits for the index
	minTidy  = 1 << 10
)

func newRulebook() *rulebook {
	return &rulebook{
		rules: []gcra.Rule{unlimited: unlimitedRule, blocked: blockedRule},
		index: map[Limit]uint32{Unlimited: unlimited, Blocked: blocked},
		most:  maxRules, tidyAt: minTidy,
	}
}

// number returns the index of a limit, and all rules.
func (b *rulebook) number(l Limit) (uint32, []gcra.Rule, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, known := b.index[l]
	if !known {
		if len(b.rules) >= b.most {
			return 0, b.rules, fmt.Errorf("there are %d different limits: want no more", len(b.rules))
		}
		r, _ := newRule(l)
		i = uint32(len(b.rules))
		b.index[l] = i
		b.rules = append(b.rules, r)
	}
	return i, b.rules, nil
}

// due reports whether the book may be worth tidying, and how many rules it has.
func (b *rulebook) due() (rules int, due bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.rules), len(b.rules) >= b.tidyAt
}

// tidied returns the same limits with a rulebook of their own, which has only
// the rules in use, if that is worth it. Otherwise it returns ls. Without it,
// the book would grow for ever if overrides come and go with limits of their
// own. Each look at all overrides comes after as many new limits.
func (ls *Limits) tidied() *Limits {
	if ls.book == nil { // the zero Limits
		return ls
	}
	rules, due := ls.book.due()
	if !due {
		return ls
	}
	other := *ls
	other.book = newRulebook()
	other.book.most = ls.book.most
	other.settings, other.overrides = slices.Clone(ls.settings), make([]overrides, len(ls.overrides))
	renumbered := map[uint32]uint32{}
	renumber := func(old uint32) uint32 {
		i, ok := renumbered[old]
		if !ok {
			l := Unlimited
			if old != unlimited {
				l = limitOf(&ls.rules[old])
			}
			i, other.rules, _ = other.book.number(l) // it has no more rules than ls
			renumbered[old] = i
		}
		return i
	}
	for i := range other.settings {
		if s := &other.settings[i]; s.declared {
			s.rule = renumber(s.rule)
		}
	}
	for i := range ls.overrides {
		var b idmap.Builder[uint32]
		for id := range ls.overrides[i].rules.IDs() {
			old, _ := ls.overrides[i].rules.Get(id)
			b.Put(id, renumber(old))
		}
		other.overrides[i] = overrides{b.Map(), ls.overrides[i].comments}
	}
	other.book.tidyAt = max(minTidy, 2*len(other.rules))
	if 2*len(other.rules) > rules {
		ls.book.mu.Lock()
		ls.book.tidyAt = max(ls.book.tidyAt, 2*rules)
		ls.book.mu.Unlock()
		return ls
	}
	return &other
}

// givenRules caches the rules of limits that callers give.
type givenRules [256]atomic.Pointer[gcra.Rule]

// of returns the rule of a limit that a caller gives. The error is Validate's.
func (g *givenRules) of(l Limit) (*gcra.Rule, error) {
	if l == Unlimited {
		return &unlimitedRule, nil
	} else if l == Blocked {
		return &blockedRule, nil
	}
	const odd = 0x9E3779B97F4A7C15
	h := ((uint64(l.Burst)*odd^uint64(l.Count))*odd^uint64(l.Period))*odd ^ uint64(l.Queue)<<3 ^ uint64(l.Durability) ^ uint64(l.calendar)<<32
	at := &g[h*odd>>56]
	if r := at.Load(); r != nil && limitOf(r) == l {
		return r, nil
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	r, _ := newRule(l)
	at.Store(&r)
	return &r, nil
}

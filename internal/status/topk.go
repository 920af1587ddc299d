package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// generation is how long decisions go to the same counters. The current
// generation and the one before it are shown, so the lists are of the last five
// to ten minutes.
const generation = 5 * time.Minute

// topK has the buckets of one limit with the highest counts in two generations.
type topK struct {
	current, previous counters
	since             time.Time // when the current generation began
}

func (t *topK) add(now time.Time, key stint.Key, n int64) {
	switch age := now.Sub(t.since); {
	case age < 0: // the clock is behind
		t.since = now
	case age >= 2*generation:
		t.current, t.previous, t.since = counters{}, counters{}, now
	case age >= generation:
		t.current, t.previous, t.since = counters{}, t.current, t.since.Add(generation)
	}
	t.current.add(key, n)
}

// counts returns the buckets with the highest counts. Each count is a lower
// bound.
func (t *topK) counts(now time.Time) []counter {
	sum := make(map[stint.Key]int64)
	shown := []*counters{&t.current, &t.previous}
	if age := now.Sub(t.since); age >= 2*generation {
		shown = nil
	} else if age >= generation {
		shown = shown[:1] // it is the previous one now
	}
	for _, cs := range shown {
		for _, c := range cs.all {
			sum[c.key] += c.n - c.over
		}
	}
	all := make([]counter, 0, len(sum))
	for key, n := range sum {
		all = append(all, counter{key: key, n: n})
	}
	slices.SortFunc(all, func(a, b counter) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.key.ID, b.key.ID))
	})
	return all
}

// maxCounters is how many buckets are counted at a time.
const maxCounters = 64

// counters finds the buckets with the highest counts by the space-saving
// algorithm: a bucket that finds no free counter takes over the smallest one.
// The old count of that counter is kept as a possible error, because it belongs
// to other buckets.
type counters struct {
	index map[stint.Key]int
	all   []counter
}

type counter struct {
	key     stint.Key
	n, over int64 // up to over of n belong to other buckets
}

func (cs *counters) add(key stint.Key, n int64) {
	if i, ok := cs.index[key]; ok {
		cs.all[i].n += n
		return
	}
	key.ID = strings.Clone(key.ID) // it may be a part of a long header field
	if cs.index == nil {
		cs.index = make(map[stint.Key]int, maxCounters)
	}
	if len(cs.all) < maxCounters {
		cs.index[key] = len(cs.all)
		cs.all = append(cs.all, counter{key: key, n: n})
		return
	}
	least := 0
	for i := range cs.all {
		if cs.all[i].n < cs.all[least].n {
			least = i
		}
	}
	c := &cs.all[least]
	delete(cs.index, c.key)
	*c = counter{key: key, n: c.n + n, over: c.n}
	cs.index[key] = least
}

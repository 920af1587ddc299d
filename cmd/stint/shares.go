package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

// registerShares registers the flag that says which limits share a total: a
// program has that in its code, not in its limits files.
func (f *limitFlags) registerShares(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.shares, "share", nil,
		"`LABEL:TOTAL[:FLOOR]`, the labels of a limit, of the total that it shares, and of its floor; may be repeated")
}

// setShares sets the Parent and the Floor of the names that --share gives.
func (f *limitFlags) setShares(names stint.Names, numbers map[string]stint.Name) error {
	for _, given := range f.shares {
		labels := strings.Split(given, ":")
		if len(labels) < 2 || len(labels) > 3 {
			return misuse(f.cmd, "--share %q: want LABEL:TOTAL or LABEL:TOTAL:FLOOR", given)
		}
		var of [3]stint.Name
		for i, label := range labels {
			name, ok := numbers[label]
			if !ok {
				return fmt.Errorf("--share %q: %s has no limit %q", given, f.file, label)
			}
			of[i] = name
		}
		class, total := names[of[0]], names[of[1]]
		class.Parent, class.Floor = of[1], of[2]
		total.ID = stint.Shared
		names[of[0]], names[of[1]] = class, total
	}
	return nil
}

// shareOf is the share that a bucket has in the total of its limit.
type shareOf struct {
	Own   *levelJSON `json:"own,omitempty"` // nil without a floor
	Total *levelJSON `json:"total"`         // nil without a limit
	Kept  int64      `json:"kept"`
	wait  time.Duration
}

type levelJSON struct {
	Remaining int64 `json:"remaining"`
	Burst     int64 `json:"burst"`
}

// addShares adds the shares of the buckets whose limit has a total (a Parent).
func addShares(found []*shown, in *source, limits *stint.Limits, numbers map[string]stint.Name, id string) error {
	load := func(key stint.Key) (b *bucket, limited bool, err error) {
		limit, limited := limits.For(key)
		if !limited {
			return &bucket{}, false, nil
		}
		spec, _ := limits.Spec(key.Name)
		name, err := in.number(spec.Label)
		if err == nil {
			b, err = in.bucket(name, key.ID)
		}
		if err != nil && !errors.As(err, new(noSuchLabel)) {
			return nil, false, err
		}
		if b == nil { // nothing of it was spent yet
			b = &bucket{}
		}
		b.measure(limit, in.now)
		return b, true, nil
	}
	for _, b := range found {
		totalKey, floorKey, kept, ok := limits.Share(numbers[b.label].Key(id))
		if !ok {
			continue
		}
		total, limited, err := load(totalKey)
		if err != nil {
			return err
		}
		b.share = &shareOf{Kept: kept}
		var alone time.Duration // until the total has a token, kept or not
		if limited {
			b.share.Total = &levelJSON{total.remaining, total.limit.Burst}
			b.share.wait, alone = total.until(1+kept), total.until(1)
		}
		if floorKey == (stint.Key{}) {
			continue
		}
		floor, _, err := load(floorKey)
		if err != nil {
			return err
		}
		b.share.Own = &levelJSON{floor.remaining, floor.limit.Burst}
		b.share.wait = min(b.share.wait, max(alone, floor.until(1)))
	}
	return nil
}

// until returns the time until the bucket has so many tokens.
func (b *bucket) until(tokens int64) time.Duration {
	switch {
	case b.limit.IsBlocked() || tokens > b.limit.Burst:
		return math.MaxInt64
	case b.limit.FollowsCalendar() && b.remaining >= tokens:
		return 0
	case b.limit.FollowsCalendar():
		return b.fullIn
	}
	return max(0, b.fullIn+time.Duration(tokens)*b.limit.Interval()-b.limit.Tolerance())
}

func (s *shareOf) words(ceiling *bucket) string {
	var parts []string
	if s.Own != nil {
		parts = append(parts, fmt.Sprintf("own %d of %d", s.Own.Remaining, s.Own.Burst))
	} else {
		parts = append(parts, "no floor")
	}
	if ceiling.limit.Burst > 0 {
		parts = append(parts, fmt.Sprintf("ceiling %d of %d", ceiling.remaining, ceiling.limit.Burst))
	}
	if s.Total != nil {
		parts = append(parts, fmt.Sprintf("total %d of %d", s.Total.Remaining, s.Total.Burst))
	}
	return strings.Join(append(parts, fmt.Sprintf("keeps back %d", s.Kept)), ", ")
}

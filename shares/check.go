package shares

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// Check returns nil, or a *stint.ConfigError for each mistake, joined: in the trees,
// in a floor that is above its ceiling, and in floors that together promise more than
// their total has. limitsfile.Locate adds the files and lines. A program calls Check
// before it puts other limits in force. Without that, no bucket goes into debt, but a
// tenant may be denied what its floor promises.
func Check(limits *stint.Limits, trees ...Tree) error {
	c := checker{limits: limits, trees: trees}
	for i, tr := range trees {
		c.checkTree(i, tr)
	}
	if c.errs != nil {
		return errors.Join(c.errs...)
	}
	for _, tr := range trees {
		c.checkRates(tr)
		for key := range floors(limits, tr) {
			c.checkFloor(tr, key)
		}
	}
	sums := sumsOf(limits, trees)
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		c.checkTotal(name, sums[name])
	}
	return errors.Join(c.errs...)
}

type checker struct {
	limits *stint.Limits
	trees  []Tree
	errs   []error
}

// wrong reports a mistake in the default of a limit, or in the override of an id.
func (c *checker) wrong(name stint.Name, id, format string, args ...any) {
	c.errs = append(c.errs, &stint.ConfigError{Label: c.label(name), ID: id, Err: fmt.Errorf(format, args...)})
}

func (c *checker) label(name stint.Name) string {
	spec, _ := c.limits.Spec(name)
	return spec.Label
}

// checkTree reports what is wrong with the Names of a tree.
func (c *checker) checkTree(i int, tr Tree) {
	for what, name := range map[string]stint.Name{"Total": tr.Total, "Class": tr.Class, "Floor": tr.Floor} {
		if _, declared := c.limits.Spec(name); !declared && (what != "Floor" || name != 0) {
			c.errs = append(c.errs, fmt.Errorf("shares: tree %d: its %s, Name %d, is not declared", i, what, name))
			return
		}
	}
	total, _ := c.limits.Spec(tr.Total)
	class, _ := c.limits.Spec(tr.Class)
	floor, _ := c.limits.Spec(tr.Floor)
	if total.IDs != stint.Single {
		c.wrong(tr.Total, "", "it is a total, with ids of format %v: want stint.Single", format(total.IDs))
	}
	if tr.Floor != 0 && (format(floor.IDs) != format(class.IDs) || floor.OverrideIDs != nil) {
		c.wrong(tr.Floor, "", "it is the floor of %s, with ids of format %s: want %s, and no Override", class.Label,
			format(floor.IDs), format(class.IDs))
	}
	if tr.Class == tr.Total || tr.Class == tr.Floor || tr.Total == tr.Floor {
		c.wrong(tr.Class, "", "it has two places in a tree: want three limits")
	}
	for _, other := range c.trees[:i] {
		if tr.Class == other.Class || tr.Class == other.Total || tr.Total == other.Class {
			c.wrong(tr.Class, "", "it is in two trees, or a total is a class: want two levels")
		}
		if tr.Floor != 0 && (tr.Floor == other.Floor || tr.Floor == other.Class || tr.Floor == other.Total) ||
			other.Floor != 0 && (other.Floor == tr.Class || other.Floor == tr.Total) {
			c.wrong(tr.Class, "", "its floor, %s, has another place in a tree: want a floor for each class", floor.Label)
		}
	}
}

func format(f stint.IDFormat) string {
	if f == nil {
		f = stint.AnyID
	}
	return f.String()
}

// checkRates reports limits that are no rates, and floors that are none.
func (c *checker) checkRates(tr Tree) {
	for _, name := range []stint.Name{tr.Total, tr.Class, tr.Floor} {
		for id, l := range all(c.limits, name) {
			if l.FollowsCalendar() {
				c.wrong(name, id, "%v follows the calendar: a total, its shares and its floors are rates", l)
			}
			if name == tr.Floor && id != "" && (l == stint.Unlimited || l == stint.Blocked) {
				c.wrong(name, id, "a floor of %s is %v: want a limit", c.label(tr.Class), l)
			}
		}
	}
	spec, _ := c.limits.Spec(tr.Floor)
	if spec.IDs != stint.Single && spec.Limit != (stint.Limit{}) && spec.Limit != stint.Unlimited {
		c.wrong(tr.Floor, "", "it is the floor of %s: want overrides for the ids that have one, and no default", c.label(tr.Class))
	}
}

// all yields the limits of a Name: the default, with no id, and the overrides.
func all(limits *stint.Limits, name stint.Name) iter.Seq2[string, stint.Limit] {
	return func(yield func(string, stint.Limit) bool) {
		spec, ok := limits.Spec(name)
		if !ok || spec.Limit != (stint.Limit{}) && !yield("", spec.Limit) {
			return
		}
		for o := range limits.Overrides(name) {
			if !yield(o.Key.ID, o.Limit) {
				return
			}
		}
	}
}

// floors yields the floors of a tree.
func floors(limits *stint.Limits, tr Tree) iter.Seq2[stint.Key, stint.Limit] {
	return func(yield func(stint.Key, stint.Limit) bool) {
		spec, _ := limits.Spec(tr.Floor)
		if spec.IDs == stint.Single { // nil is AnyID
			key := tr.Floor.Key("")
			if l := limits.For(key); promises(l) {
				yield(key, l)
			}
			return
		}
		for o := range limits.Overrides(tr.Floor) {
			if promises(o.Limit) && !yield(o.Key, o.Limit) {
				return
			}
		}
	}
}

// promises reports whether a limit has numbers.
func promises(l stint.Limit) bool { return l.Count > 0 }

// sumsOf returns what the floors of each total promise.
func sumsOf(limits *stint.Limits, trees []Tree) map[stint.Name]*sum {
	sums := make(map[stint.Name]*sum)
	for _, tr := range trees {
		s := sums[tr.Total]
		if s == nil {
			s = new(sum)
			sums[tr.Total] = s
		}
		for _, l := range floors(limits, tr) {
			s.add(l.Burst, l.Interval())
		}
	}
	return sums
}

// checkFloor reports a floor that is above its ceiling.
func (c *checker) checkFloor(tr Tree, key stint.Key) {
	low, high := c.limits.For(key), c.limits.For(tr.Class.Key(key.ID))
	if !promises(high) || low.FollowsCalendar() || high.FollowsCalendar() {
		return
	}
	if low.Burst > high.Burst {
		c.wrong(key.Name, key.ID, "the burst for %q is %d, above that of the ceiling, %s: %d", key.ID, low.Burst,
			c.label(tr.Class), high.Burst)
	}
	if low.Interval() < high.Interval() {
		c.wrong(key.Name, key.ID, "the rate for %q, %v, is above that of the ceiling, %s: %v", key.ID,
			low.WithBurst(low.Count), c.label(tr.Class), high.WithBurst(high.Count))
	}
}

// checkTotal reports floors that are more than their total.
func (c *checker) checkTotal(name stint.Name, s *sum) {
	total := c.limits.For(name.Key(""))
	if !promises(total) || total.FollowsCalendar() {
		return
	}
	var labels []string
	for _, tr := range c.trees {
		if tr.Total == name {
			labels = append(labels, c.label(tr.Class))
		}
	}
	slices.Sort(labels)
	classes := strings.Join(labels, " and ")
	if s.most >= total.Burst {
		c.wrong(name, "", "the bursts of the floors of %s add up to %d: want less than its burst, %d", classes, s.most, total.Burst)
	}
	each := func(yield func(stint.Limit) bool) {
		for _, tr := range c.trees {
			if tr.Total != name {
				continue
			}
			for _, l := range floors(c.limits, tr) {
				if !yield(l) {
					return
				}
			}
		}
	}
	intervals := func(yield func(time.Duration) bool) {
		for l := range each {
			if !yield(l.Interval()) {
				return
			}
		}
	}
	if s.fitsRate(total.Interval(), intervals) {
		return
	}
	tokens, more := promised(total, each)
	steady, _, _ := strings.Cut(total.WithBurst(total.Count).String(), "/")
	period := strings.TrimPrefix(total.WithBurst(total.Count).String(), steady+"/")
	text := fmt.Sprintf("the floors of %s add up to %s/%s: want no more than its %v", classes, tokens, period,
		total.WithBurst(total.Count))
	if !more {
		text += fmt.Sprintf(", rounded to a token each %v", total.Interval())
	}
	c.wrong(name, "", "%s", text)
}

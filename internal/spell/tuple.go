package spell

import (
	"fmt"
	"strings"
)

// AnyID is 1 to MaxID bytes, as they are.
var AnyID = NewFormat("anyID", func(id string) (string, error) { return id, nil })

// Tuple is the format of ids that have several parts with colons between them.
type Tuple struct{ parts []Format }

// NewTuple returns a Tuple. The parts of a Tuple in it are parts of the result.
func NewTuple(parts []Format) *Tuple {
	t := &Tuple{}
	for _, f := range parts {
		if of, ok := f.(*Tuple); ok {
			t.parts = append(t.parts, of.parts...)
		} else {
			t.parts = append(t.parts, f)
		}
	}
	return t
}

// String implements Format.
func (t *Tuple) String() string { return Call("tuple", t.parts) }

// Canonical implements Format.
func (t *Tuple) Canonical(id string) (string, error) {
	ids := strings.SplitN(id, ":", len(t.parts))
	if len(ids) != len(t.parts) {
		return "", Invalid(t, id, fmt.Errorf("want %d parts, not %d", len(t.parts), len(ids)))
	}
	for i, part := range ids {
		canonical, err := Canonical(t.parts[i], part)
		if err == nil && i < len(ids)-1 && strings.Contains(canonical, ":") {
			err = fmt.Errorf("its canonical spelling %s holds a colon", Quote(canonical))
		}
		if err != nil {
			err = fmt.Errorf("part %d, %s: %s", i+1, Quote(part), Reason(err))
			return "", Invalid(t, id, err)
		}
		ids[i] = canonical
	}
	return Finish(t, id, strings.Join(ids, ":"), nil)
}

// Parts returns the number of parts that the ids of a format have.
func Parts(f Format) int {
	if t, ok := f.(*Tuple); ok {
		return len(t.parts)
	}
	return 1
}

// CanonicalOverride returns the canonical spelling of an id that an override names:
// of the format ids, or of the format overrideIDs, which is that of the leading parts
// of ids, unless it is nil. A nil ids is AnyID.
func CanonicalOverride(ids, overrideIDs Format, given string) (string, error) {
	if ids == nil {
		ids = AnyID
	}
	if overrideIDs == nil {
		return Canonical(ids, given)
	}
	canonical, err := Canonical(overrideIDs, given)
	if err != nil {
		return "", err
	}
	if n := Parts(overrideIDs); strings.Count(canonical, ":") != n-1 {
		why := fmt.Errorf("want %d parts, not %d", n, strings.Count(canonical, ":")+1)
		return "", Invalid(overrideIDs, given, why)
	}
	if id, ok := ids.(*Tuple); ok { // a whole id must write the parts in the same way
		for i, part := range strings.SplitN(canonical, ":", len(id.parts)) {
			as, why := Canonical(id.parts[i], part)
			if why == nil && as != part {
				why = fmt.Errorf("in an id it is %s", Quote(as))
			}
			if why != nil {
				why = fmt.Errorf("part %d, %s: %s", i+1, Quote(part), Reason(why))
				return "", Invalid(overrideIDs, given, why)
			}
		}
	}
	return canonical, nil
}

package rules

import (
	"fmt"
	"net/netip"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/spell"
)

// Unix is the id of all clients on Unix sockets that have no address.
const Unix = "unix"

// keyOf returns the bucket of an id in its canonical spelling.
func keyOf(found stint.Key, spec *stint.NameSpec) (stint.Key, error) {
	f := spec.IDs
	if f == nil {
		f = stint.AnyID
	}
	id, err := spell.Canonical(f, found.ID)
	if err != nil {
		return stint.Key{}, fmt.Errorf("%w (%s)", err, spec.Label)
	}
	return found.Name.Key(id), nil
}

// canonical returns a key with the canonical spelling of its id, and the label of
// its limit. If the limit takes only addresses, the id of a network becomes its
// first address. If unix is set, the id Unix is good for any limit.
func canonical(limits *stint.Limits, found stint.Key, unix bool) (key stint.Key, label string, err error) {
	spec, ok := limits.Spec(found.Name)
	if !ok {
		key, err = stint.Names{}.Key(found.Name, found.ID) // it is not declared
		return key, "", err
	}
	if key, err = keyOf(found, &spec); err != nil {
		key, err = otherKey(found, &spec, unix, err)
	}
	return key, spec.Label, err
}

// otherKey is canonical for an id that the limit refuses with err.
func otherKey(found stint.Key, spec *stint.NameSpec, unix bool, err error) (stint.Key, error) {
	if found.ID == Unix && unix {
		return found, nil
	}
	network, notOne := netip.ParsePrefix(found.ID)
	if notOne == nil && network == network.Masked() {
		if asAddress, not := keyOf(found.Name.Key(network.Addr().String()), spec); not == nil {
			return asAddress, nil
		}
	}
	return stint.Key{}, err
}

package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/spell"
)

// Unix is the id of all clients on Unix sockets that have no address.
const Unix = "unix"

// namesCache caches the Names of the limits in force, because Limits.Names copies
// them.
type namesCache struct{ cached atomic.Pointer[declared] }

// declared are the Names of the limits in force. Each pass looks at a spec twice: in
// the map that takes 25 ns.
type declared struct {
	limits *stint.Limits
	names  stint.Names
	specs  []stint.NameSpec // by Name; the zero NameSpec for one that is not declared
}

// of returns the Names of the limits in force.
func (n *namesCache) of(lim stint.Decider) *declared {
	limits := lim.Limits()
	d := n.cached.Load()
	if d == nil || d.limits != limits {
		d = declare(limits.Names())
		d.limits = limits
		n.cached.Store(d)
	}
	return d
}

// declare returns names as declared.
func declare(names stint.Names) *declared {
	most := stint.Name(0)
	for name := range names {
		most = max(most, name)
	}
	d := &declared{names: names, specs: make([]stint.NameSpec, int(most)+1)}
	for name, spec := range names {
		if spec.ID == nil {
			spec.ID = stint.AnyID
		}
		d.specs[name] = spec
	}
	return d
}

// spec returns the declaration of a Name, or the zero NameSpec.
func (d *declared) spec(name stint.Name) *stint.NameSpec {
	if int(name) < len(d.specs) {
		return &d.specs[name]
	}
	return new(stint.NameSpec)
}

// key is stint.Names.Key.
func (d *declared) key(found stint.Key) (stint.Key, error) {
	if f := d.spec(found.Name).ID; f != nil {
		if id, err := spell.Canonical(f, found.ID); err == nil {
			return found.Name.Key(id), nil
		}
	}
	return d.names.Key(found.Name, found.ID) // explains the error
}

// canonical returns a key with the canonical spelling of its id. If the limit takes
// only addresses, the id of an IPv6 network becomes its first address. If unix
// is set, the id Unix is good for any limit. If locksOut is set, a rule locks out, and
// an id under which lock-outs are counted is refused.
func (d *declared) canonical(found stint.Key, unix, locksOut bool) (stint.Key, error) {
	key, err := d.key(found)
	if err != nil {
		key, err = d.otherKey(found, unix, err)
	}
	if err == nil && locksOut && IsLockOutCount(key) {
		return stint.Key{}, fmt.Errorf("%w %.80q: want an id that does not end in %q",
			stint.ErrInvalidID, found.ID, countSuffix)
	}
	return key, err
}

// otherKey is canonical for an id that the limit refuses with err.
func (d *declared) otherKey(found stint.Key, unix bool, err error) (stint.Key, error) {
	if !errors.Is(err, stint.ErrInvalidID) {
		return stint.Key{}, err
	}
	if found.ID == Unix && unix {
		return found, nil
	}
	network, notOne := netip.ParsePrefix(found.ID)
	if notOne == nil && network.Addr().Unmap().Is6() && network == network.Masked() {
		if asAddress, not := d.key(found.Name.Key(network.Addr().String())); not == nil {
			return asAddress, nil
		}
	}
	return stint.Key{}, err
}

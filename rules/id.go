package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/stint-go/stint"
)

// Unix is the id of all clients on Unix sockets that have no address.
const Unix = "unix"

// namesCache caches the Names of the limits in force, because Limits.Names copies
// them.
type namesCache struct{ cached atomic.Pointer[declared] }

type declared struct {
	limits *stint.Limits
	names  stint.Names
}

// of returns the Names of the limits in force. The caller must not change them.
func (n *namesCache) of(lim stint.Decider) stint.Names {
	limits := lim.Limits()
	d := n.cached.Load()
	if d == nil || d.limits != limits {
		d = &declared{limits, limits.Names()}
		n.cached.Store(d)
	}
	return d.names
}

// canonical returns a key with the canonical spelling of its id. If the limit takes
// only addresses, the id of an IPv6 network becomes its first address. If unix
// is set, the id Unix is good for any limit. If counts is set, a rule counts
// lock-outs, and an id of such a count is refused.
func canonical(names stint.Names, found stint.Key, unix, counts bool) (stint.Key, error) {
	if counts && IsLockOutCount(found) {
		return stint.Key{}, fmt.Errorf("%w %.80q: want an id that does not end in %q",
			stint.ErrInvalidID, found.ID, countSuffix)
	}
	key, err := names.Key(found.Name, found.ID)
	if !errors.Is(err, stint.ErrInvalidID) {
		return key, err
	}
	if found.ID == Unix && unix {
		return found, nil
	}
	network, notOne := netip.ParsePrefix(found.ID)
	if notOne == nil && network.Addr().Unmap().Is6() && network == network.Masked() {
		if asAddress, not := names.Key(found.Name, network.Addr().String()); not == nil {
			return asAddress, nil
		}
	}
	return key, err
}

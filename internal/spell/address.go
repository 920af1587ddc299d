package spell

import "net/netip"

// nat64 is the well-known prefix of RFC 6052, under which the clients of a translator
// have their IPv4 addresses. The prefixes for local use (RFC 8215) do not say where
// in them the IPv4 address is.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Address returns the one form of an address: it has no zone, and if an IPv6 address
// stands for an IPv4 address, because it is mapped or of NAT64, it is that one.
func Address(addr netip.Addr) netip.Addr {
	addr = addr.WithZone("")
	if nat64.Contains(addr) {
		of := addr.As16()
		return netip.AddrFrom4([4]byte(of[12:]))
	}
	return addr.Unmap()
}

// Network returns the form of a network that contains addresses as Address has them.
func Network(p netip.Prefix) netip.Prefix {
	if addr := Address(p.Addr()); addr.Is4() && p.Bits() >= 96 {
		p = netip.PrefixFrom(addr, p.Bits()-96)
	}
	return p.Masked()
}

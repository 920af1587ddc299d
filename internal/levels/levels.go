// Package levels says which spends may wait for the disk, for packages that carry out
// the others at once: netlimit in Accept, hostlimit in the reader of a connection.
package levels

import (
	"cmp"

	"github.com/stint-go/stint"
)

// MayWait reports whether a spend for a request may wait for a commit: whether the
// limit of the request, or else the configured one, is Leased or Synced. A limit
// that names no level has the default one.
func MayWait(limits *stint.Limits, req *stint.Request, byDefault stint.Durability) bool {
	limit := req.Limit
	if limit == (stint.Limit{}) {
		limit = limits.For(req.Key)
	}
	return limit.Burst > 0 && cmp.Or(limit.Durability, byDefault) >= stint.Leased
}

package rules

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

const (
	anyID   = ofA
	address = ofB
	folded  = free
)

// lower is an IDFormat that folds case.
type lower struct{}

func (lower) String() string                      { return "lower" }
func (lower) Canonical(id string) (string, error) { return strings.ToLower(id), nil }

func TestCanonical(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{anyID: {Label: "any", Limit: stint.Unlimited},
		address: {Label: "address", IDs: stint.IPAddress, Limit: stint.Unlimited},
		folded:  {Label: "folded", IDs: lower{}, Limit: stint.Unlimited}})
	require.NoError(t, err)
	for _, c := range []struct {
		found stint.Key
		unix  bool
		want  stint.Key
		err   error
	}{
		{found: anyID.Key("a"), want: anyID.Key("a")},
		{found: anyID.Key(""), err: stint.ErrInvalidID},
		{found: stint.Name(9).Key("a"), err: stint.ErrUnknownName},
		{found: address.Key("::ffff:192.0.2.1"), want: address.Key("192.0.2.1")},
		{found: address.Key("2001:db8::/64"), want: address.Key("2001:db8::")},
		{found: address.Key("2001:db8::7/128"), want: address.Key("2001:db8::7")},
		{found: address.Key("2001:db8::1/64"), err: stint.ErrInvalidID},
		{found: address.Key("192.0.2.0/24"), want: address.Key("192.0.2.0")},
		{found: address.Key("192.0.2.1/24"), err: stint.ErrInvalidID},
		{found: address.Key(Unix), err: stint.ErrInvalidID},
		{found: address.Key(Unix), unix: true, want: address.Key(Unix)},
		{found: anyID.Key("a lock-outs"), want: anyID.Key("a lock-outs")},
		{found: folded.Key("A"), want: folded.Key("a")},
	} {
		got, _, err := canonical(limits, c.found, c.unix)
		if c.err != nil {
			assert.ErrorIs(t, err, c.err, "%v", c.found)
			continue
		}
		require.NoError(t, err, "%v", c.found)
		assert.Equal(t, c.want, got)
	}
}

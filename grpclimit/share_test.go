package grpclimit_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
)

// A call whose rules are shares of one total spends the sum of their costs from
// the total, or nothing.
func TestOneTotal(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{total: stint.PerHour(5), class: stint.PerHour(20)})
	other := func(grpclimit.Call) (stint.Key, error) { return class.Key("other"), nil }
	c := dial(t, serve(t, &service{}, limited(lim, nil,
		grpclimit.Rule{Key: grpclimit.ByMetadata(class, "id"), Cost: 2, Refund: grpclimit.ServerError},
		grpclimit.Rule{Key: other, Refund: grpclimit.ServerError})...))
	left := func() (left []int64) {
		for _, key := range []stint.Key{total.Key(""), class.Key("a"), class.Key("other")} {
			b, err := lim.Bucket(key)
			require.NoError(t, err)
			left = append(left, b.Remaining)
		}
		return left
	}
	require.Equal(t, []codes.Code{codes.OK, codes.ResourceExhausted}, answers(t, 2, c, "id", "a"))
	require.Equal(t, []int64{2, 18, 19}, left())
}

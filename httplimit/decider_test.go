package httplimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// callCounter is a Decider that counts the calls that decide, each of which may
// be a round trip.
type callCounter struct {
	stint.Decider
	calls int
}

func (c *callCounter) Do(
	ctx context.Context, reqs []stint.Request, ds []stint.Decision,
) (stint.Decision, error) {
	c.calls++
	return c.Decider.Do(ctx, reqs, ds)
}

// All rules that can deny are decided in one call.
func TestOneCall(t *testing.T) {
	lim, err := stint.New(stint.NewMemStore(), testLimits(t, map[stint.Name]stint.Limit{
		perAddress: stint.PerHour(2), everyone: stint.PerHour(100), failures: stint.PerHour(5),
	}), nil)
	require.NoError(t, err)
	defer lim.Close()
	counter := &callCounter{Decider: lim}
	rs := []Rule{{Key: ByIP(perAddress)}, {Key: Shared(everyone)}, {Key: ByIP(failures), Count: AuthFailed}}
	for n := 1; n <= len(rs); n++ {
		var left []int64
		h := Middleware(counter, nil, rs[:n]...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for _, d := range rules.Decisions(r.Context()) {
				left = append(left, d.Remaining)
			}
		}))
		for _, allowed := range []bool{true, true, false} {
			counter.calls, left = 0, nil
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			require.Equal(t, 1, counter.calls, "%d rules", n)
			require.Equal(t, allowed, w.Code == http.StatusOK)
			if allowed {
				require.Len(t, left, n)
			}
		}
		require.NoError(t, lim.Reset(perAddress.Key("192.0.2.1")))
	}
}

package httplimit

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// lockedOut locks an id out with five failures, and returns for how long.
func lockedOut(t *testing.T, lim limiter, clock *testClock, ru Rule, id string) time.Duration {
	t.Helper()
	h := Middleware(lim, nil, ru)(http.HandlerFunc(status))
	for {
		r := httptest.NewRequest("GET", "/?status=401", nil)
		r.Header.Set("X-Key", id)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != 401 {
			require.Equal(t, 429, w.Code)
			return heldUntil(t, lim, perKey.Key(id)).Sub(clock.now())
		}
	}
}

func TestLockOutMax(t *testing.T) {
	t.Parallel()
	ru := Rule{Key: ByHeader(perKey, "X-Key"), Count: AuthFailed, LockOut: 15 * time.Minute,
		LockOutMax: 24 * time.Hour}
	doubled := []time.Duration{
		15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour,
		24 * time.Hour, 24 * time.Hour,
	}
	t.Run("doubles, over restarts", func(t *testing.T) {
		path, clock := filepath.Join(t.TempDir(), "stint.db"), newTestClock()
		restart := func(f func(lim *stint.Limiter)) {
			lim, err := stint.Open(path, testLimits(t, nil), &stint.Options{Now: clock.now})
			require.NoError(t, err)
			f(lim)
			require.NoError(t, lim.Close())
		}
		for _, want := range doubled {
			restart(func(lim *stint.Limiter) {
				require.Equal(t, want, lockedOut(t, lim, clock, ru, "k"))
			})
			clock.pass(want + 23*time.Hour) // not quiet for long enough
		}
		restart(func(lim *stint.Limiter) {
			require.Equal(t, 15*time.Minute, lockedOut(t, lim, clock, ru, "other"))
			clock.pass(time.Hour + time.Microsecond)
			require.Equal(t, 15*time.Minute, lockedOut(t, lim, clock, ru, "k"), "quiet for its maximum")
		})
	})
	t.Run("many", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		for most, each := range map[time.Duration]time.Duration{0: time.Minute, time.Minute: time.Minute,
			2 * time.Minute: 2 * time.Minute} {
			ru := ru
			ru.LockOut, ru.LockOutMax = time.Minute, most
			require.Equal(t, time.Minute, lockedOut(t, lim, clock, ru, "k"))
			for range 70 { // more than are counted
				clock.pass(each)
				require.Equal(t, each, lockedOut(t, lim, clock, ru, "k"))
			}
			require.NoError(t, lim.Reset(perKey.Key("k")))
		}
	})
	t.Run("ids", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		for _, id := range []string{"k", strings.Repeat("x", 512), strings.Repeat("x", 511)} {
			for _, want := range doubled[:3] {
				require.Equal(t, want, lockedOut(t, lim, clock, ru, id))
				clock.pass(want + time.Minute)
			}
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Key", "k lock-outs")
		w := httptest.NewRecorder()
		Middleware(lim, nil, ru)(http.HandlerFunc(status)).ServeHTTP(w, r)
		require.Equal(t, 400, w.Code, "no client writes a count")
	})
	t.Run("a reset of the count", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		require.Equal(t, 15*time.Minute, lockedOut(t, lim, clock, ru, "k"))
		require.NoError(t, lim.Reset(perKey.Key("k")))
		require.Equal(t, 30*time.Minute, lockedOut(t, lim, clock, ru, "k"), "the count stays")
		require.NoError(t, lim.Reset(perKey.Key("k")))
		require.NoError(t, lim.Reset(perKey.Key("k lock-outs")))
		require.Equal(t, 15*time.Minute, lockedOut(t, lim, clock, ru, "k"))
	})
}

package statuspage

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

func TestNew(t *testing.T) {
	require.PanicsWithValue(t, "statuspage: New: no limiter", func() { New(nil, nil) })
	lim, _ := newLimiter(t, nil, nil)
	require.Equal(t, "5", get(New(lim, nil), "").Header().Get("Refresh"))
	require.Equal(t, "1", get(New(lim, &Options{Refresh: -1}), "").Header().Get("Refresh"))
	require.Empty(t, get(New(lim, nil), "?refresh=0").Header().Get("Refresh"))
}

func TestPageHTML(t *testing.T) {
	limits, err := stint.NewLimits(stint.Names{1: {Label: `<script>alert("label")</script>`}},
		map[stint.Name]stint.Limit{1: stint.PerDay(2000).WithBurst(7)}, map[stint.Name][]stint.Override{
			1: {{IDs: []stint.OverrideID{{ID: "a"}, {ID: "b"}}, Limit: stint.PerHour(1)}},
		})
	require.NoError(t, err)
	store := faultyStore{MemStore: stint.NewMemStore(), save: func() error { return errors.New("disk full") }}
	lim, err := stint.New(store, limits, &stint.Options{Now: newClock().now})
	require.NoError(t, err)
	defer lim.Close()
	p := New(lim, &Options{Title: "A & B"})
	require.Equal(t, 200, asker(p, httplimit.Rule{Key: httplimit.ByHeader(1, "X-Key")})(1, `"><img src=x>`))
	require.Error(t, lim.Flush())

	res := get(p, "")
	policy, body := res.Header().Get("Content-Security-Policy"), res.Body.String()
	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "frame-ancestors 'none'")
	require.Equal(t, "same-origin", res.Header().Get("Referrer-Policy"), "the forms need an Origin")
	for _, text := range []string{"<script", "<img", "http://", "https://"} {
		require.NotContains(t, body, text)
	}
	for _, text := range []string{
		"No decisions in the last five minutes", "A &amp; B", "Something is wrong", "disk full",
		"2\u202f000 per day, burst 7", "2 overrides", "6 of 7",
	} {
		require.Contains(t, body, text)
	}
	require.NotContains(t, body, `class="grid"`, "no line strikes the text through")
	for _, format := range []string{"", "json", "prometheus"} {
		require.Equal(t, "no-store", get(p, "?format="+format).Header().Get("Cache-Control"))
	}
	require.Equal(t, 400, get(p, "?format=xml").Code)
	require.Equal(t, 405, do(p, "DELETE", "", nil).Code)
}

func TestPageSnapshot(t *testing.T) {
	lim, err := stint.Open(filepath.Join(t.TempDir(), "stint.db"), testLimits(t, nil), nil)
	require.NoError(t, err)
	defer lim.Close()
	require.True(t, lim.Allow(perKey.Key("a")))
	require.Equal(t, 403, get(New(lim, nil), "?format=snapshot").Code)
	p := New(lim, &Options{AllowSnapshot: true})
	for site, want := range map[string]int{
		"": 200, "cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200,
	} {
		require.Equal(t, want, get(p, "?format=snapshot", "Sec-Fetch-Site", site).Code, site)
		head := do(p, "HEAD", "?format=snapshot", nil, "Sec-Fetch-Site", site)
		require.Equal(t, want, head.Code, site)
		if want == 200 {
			require.Zero(t, head.Body.Len())
		}
	}

	t.Run("holds the last decision", func(t *testing.T) {
		res := get(p, "?format=snapshot")
		require.Equal(t, "application/octet-stream", res.Header().Get("Content-Type"))
		path := filepath.Join(t.TempDir(), "copy.db")
		require.NoError(t, os.WriteFile(path, res.Body.Bytes(), 0o600))
		store, err := stint.OpenBolt(path, nil, &stint.BoltOptions{ReadOnly: true})
		require.NoError(t, err)
		defer store.Close()
		tat, err := store.Load(perKey.Key("a"))
		require.NoError(t, err)
		require.Positive(t, tat)
	})
	t.Run("one at a time", func(t *testing.T) {
		p.copying.Lock()
		defer p.copying.Unlock()
		res := get(p, "?format=snapshot")
		require.Equal(t, 503, res.Code)
		require.Equal(t, "1", res.Header().Get("Retry-After"))
	})
	t.Run("closed", func(t *testing.T) {
		require.NoError(t, lim.Close())
		require.Equal(t, 503, get(p, "?format=snapshot").Code)
	})
	t.Run("no file", func(t *testing.T) {
		lim, _ := newLimiter(t, nil, nil)
		res := get(New(lim, &Options{AllowSnapshot: true}), "?format=snapshot")
		require.Equal(t, 503, res.Code)
		require.Contains(t, res.Body.String(), "has no file to copy")
	})
	t.Run("fails half way", func(t *testing.T) {
		lim, _ := newLimiter(t, faultyStore{MemStore: stint.NewMemStore(), copy: func(w io.Writer) (int64, error) {
			n, _ := w.Write(make([]byte, 100_000))
			return int64(n), errors.New("disk full")
		}}, nil)
		srv := httptest.NewServer(New(lim, &Options{AllowSnapshot: true}))
		defer srv.Close()
		res, err := http.Get(srv.URL + "?format=snapshot")
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		require.Error(t, err, "it must not look complete")
	})
}

func TestTexts(t *testing.T) {
	every := func(period time.Duration) string {
		return limitText(stint.Limit{Burst: 5, Count: 5, Period: period})
	}
	for got, want := range map[string]string{
		rateText(0): "0", rateText(0.01): "<0.1", rateText(0.24): "0.2", rateText(3): "3", rateText(9.96): "10",
		rateText(1234.4): "1\u202f234", countText(1234567): "1\u202f234\u202f567", countText(123): "123",
		countText(-1234): "-1\u202f234",
		bytesText(0):     "0\u202fB", bytesText(1536): "1.5\u202fKiB", bytesText(16 << 20): "16.0\u202fMiB",
		bytesText(200 << 30): "200\u202fGiB",
		durationText(0):      "–", durationText(0.00025): "250\u202fµs", durationText(0.0125): "12.5\u202fms",
		durationText(2): "2.0\u202fs",
		waitText(0):     "now", waitText(0.1): "1\u202fs", waitText(60): "1\u202fmin", waitText(3601): "2\u202fh",
		waitText(1e6):                               "12\u202fd",
		limitText(stint.PerSecond(100)):             "100 per second",
		limitText(stint.PerMinute(5).WithBurst(20)): "5 per minute, burst 20",
		every(15 * time.Minute):                     "5 per 15 minutes",
		every(36 * time.Hour):                       "5 per 36 hours",
		every(90 * time.Second):                     "5 per 90 seconds",
		every(time.Millisecond):                     "5 per 1ms",
		limitText(stint.Blocked):                    "blocked",
		limitText(stint.Limit{}):                    "no limit",
	} {
		require.Equal(t, want, got)
	}
	for v, want := range map[float64]float64{0: 0.1, 0.3: 0.5, 101: 200, 1000: 1000} {
		require.Equal(t, want, niceCeil(v))
	}
}

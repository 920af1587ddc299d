package statuspage

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/status"
)

// A lock-out of an earlier process is in force, so the page lists it.
func TestReportHeld(t *testing.T) {
	path, clock := filepath.Join(t.TempDir(), "stint.db"), newClock()
	open := func() *stint.Limiter {
		lim, err := stint.Open(path, testLimits(t, nil), &stint.Options{Now: clock.Now})
		require.NoError(t, err)
		return lim
	}
	lim := open()
	ask := asker(New(lim, nil), httplimit.Rule{
		Key: httplimit.ByIP(perAddress), LockOut: time.Hour,
	})
	require.Equal(t, 429, ask(6, ""))
	require.NoError(t, errorOf(lim.Hold(perKey.Key("short"), clock.Now().Add(time.Minute))))
	require.NoError(t, lim.Close())
	clock.Advance(20 * time.Minute)
	lim = open()
	defer lim.Close()
	p := New(lim, nil)

	rep := new(status.Report)
	require.NoError(t, json.Unmarshal(get(p, "?format=json").Body.Bytes(), rep))
	require.EqualValues(t, 1, rep.Holds)
	require.EqualValues(t, 1, limitOf(rep, "address").Holds)
	require.Zero(t, limitOf(rep, "key").Holds, "its hold is over")
	require.Len(t, rep.Held, 1)
	h := rep.Held[0]
	require.Equal(t, []any{"address", client.ID, 2400.0}, []any{h.Label, h.ID, h.HeldFor})
	require.True(t, clock.Now().Add(40*time.Minute).Equal(h.Until))
	require.NoError(t, lim.SetHold(client, time.Time{}))
	clock.Advance(time.Second)
	require.Empty(t, p.collector.Report().Held)
	require.Equal(t, "[]", string(must(json.Marshal(p.collector.Report().Held))))
}

func must(b []byte, _ error) []byte { return b }

func TestReportManyHeld(t *testing.T) {
	p, lim, clock := newPage(t, nil, nil)
	require.NotContains(t, get(p, "").Body.String(), "<h2>Held</h2>")
	const n = 5 * shownHolds / 2
	for i := range n {
		require.NoError(t, errorOf(lim.Hold(perKey.Key(fmt.Sprint("held-", i)), clock.Now().Add(time.Duration(i+1)*time.Minute))))
	}
	require.True(t, lim.Allow(client))
	for range 7 { // 5 tokens, then the queue
		_, err := lim.Reserve(failures.Key("queued").Cost(1))
		require.NoError(t, err)
	}
	clock.Advance(time.Second)
	rep := p.collector.Report()
	require.EqualValues(t, n, rep.Holds)
	require.EqualValues(t, 2, rep.Waiting)
	require.EqualValues(t, 2, limitOf(rep, "login").Waiting)
	require.Len(t, rep.Held, shownHolds)
	for i, h := range rep.Held {
		require.Equal(t, fmt.Sprint("held-", n-1-i), h.ID)
	}
	html := get(p, "").Body.String()
	require.Contains(t, html, "The 100 of 250 that end last: a search finds the others")
	require.Contains(t, html, "2 waiting in queues")
	require.Contains(t, html, `<a class="id" href="?id=held-249">held-249</a> `+
		`<small>key</small></td><td>2001-09-09 05:56 UTC`)
	metrics := get(p, "?format=prometheus").Body.String()
	for _, line := range []string{
		`stint_buckets_held{stint_limit="key"} 250`, `stint_buckets_held{stint_limit="login"} 0`,
		`stint_requests_waiting{stint_limit="login"} 2`, `stint_requests_waiting{stint_limit="address"} 0`,
	} {
		require.Contains(t, metrics, line+"\n")
	}
	t.Run("undeclared names", func(t *testing.T) {
		limits, err := stint.NewLimits(stint.Names{failures: testNames[failures]})
		require.NoError(t, err)
		require.NoError(t, lim.SetLimits(limits))
		clock.Advance(time.Second)
		require.Zero(t, p.collector.Report().Holds)
	})
}

package statuspage

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestPageSearch(t *testing.T) {
	p, lim, clock := newPage(t, nil, map[stint.Name]stint.Limit{perKey: stint.Blocked})
	require.True(t, lim.Allow(client))
	require.NoError(t, errorOf(lim.Hold(off.Key(client.ID), clock.Now().Add(time.Hour))))
	for _, id := range []string{"192.0.2.1", "::ffff:192.0.2.1"} {
		res := get(p, "?id="+id)
		require.Empty(t, res.Header().Get("Refresh"))
		body := res.Body.String()
		require.Contains(t, body, `name="id" value="`+id+`"`)
		require.Contains(t, body, "<h2>address</h2>\n"+
			"<p class=\"what\"><span class=\"id\">192.0.2.1</span> · 5/1m</p>\n<p>4 of 5 left, full in 12s</p>")
		require.Equal(t, id == client.ID, strings.Contains(body, "<h2>off</h2>"), "another id, as it is not an address there")
		require.Contains(t, body, "</span> · blocked</p>")
		require.Contains(t, body, "</span> · 5/1m</p>\n<p>5 of 5 left</p>")
	}
	require.Equal(t, 1, strings.Count(get(p, "?id=192.0.2.1").Body.String(), "Held until"))
	require.Contains(t, get(p, "?id=").Body.String(), "No limit covers this id.")
	require.NotContains(t, get(p, "?id=<script>").Body.String(), "<script")

	t.Run("everyone", func(t *testing.T) {
		limits, err := stint.NewLimits(stint.Names{1: {Label: "all", IDs: stint.Single, Limit: stint.PerMinute(5)}})
		require.NoError(t, err)
		lim, err := stint.New(stint.NewMemStore(), limits, nil)
		require.NoError(t, err)
		defer lim.Close()
		p := New(lim, nil)
		require.NoError(t, errorOf(lim.Hold(stint.Name(1).Key(""), lim.Now().Add(time.Hour))))
		require.Contains(t, get(p, "").Body.String(), `<a class="id" href="?id=">everyone</a>`)
		require.Contains(t, get(p, "?id=").Body.String(), "everyone</span> · 5/1m")
	})
}

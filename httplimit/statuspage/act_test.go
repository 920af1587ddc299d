package statuspage

import (
	"errors"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// post sends a form to the page. fields are names and values of the header.
func post(p *Page, form string, fields ...string) *httptest.ResponseRecorder {
	return do(p, "POST", "", strings.NewReader(form),
		append(fields, "Content-Type", "application/x-www-form-urlencoded")...)
}

var fromPage = []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://page.example"}

func TestPageActions(t *testing.T) {
	p, lim, clock := newPage(t, &Options{AllowReset: true}, nil)
	ask := asker(p, httplimit.Rule{Key: httplimit.ByIP(perAddress)})
	require.Equal(t, 429, ask(6, ""))
	token := p.report().limit("address").MostDenied[0].Token
	overview := get(p, "").Body.String()
	require.NotContains(t, overview, "<button name", "no click in a row that moves changes anything")
	require.Contains(t, overview, `aria-label="Reset `+client.ID+`">Reset…</a>`)

	bucket := func() (left int64, heldFor time.Duration) {
		b, err := lim.Bucket(client)
		require.NoError(t, err)
		if b.HeldUntil.IsZero() {
			return b.Remaining, 0
		}
		return b.Remaining, b.HeldUntil.Sub(lim.Now())
	}
	for _, tc := range []struct {
		form     string
		question []string
		left     int64
		held     time.Duration
	}{
		{"reset=", []string{"Reset <bdi>192.0.2.1</bdi>?", "address · 5/1m", "0 of 5 left, full in 1m",
			"A reset fills the bucket and ends its hold."}, 5, 0},
		{"for=24h&hold=", []string{"Hold <bdi>192.0.2.1</bdi>?", "5 of 5 left</p>", `<option value="24h" selected>`}, 5, 24 * time.Hour},
		{"for=15m&hold=", []string{"Held until 2001-09-10 01:46 UTC, for 24h more", "It replaces the hold"}, 5,
			15 * time.Minute},
		{"end=", []string{"End the hold of <bdi>192.0.2.1</bdi>?", "The bucket keeps the tokens that it has."}, 5, 0},
		{"for=1h&hold=", []string{"Hold <bdi>192.0.2.1</bdi>?"}, 5, time.Hour},
		{"reset=", []string{"Held until 2001-09-09 02:46 UTC, for 1h more"}, 5, 0},
	} {
		left, held := bucket()
		question := get(p, "?"+tc.form+token)
		require.Equal(t, 200, question.Code)
		require.Empty(t, question.Header().Get("Refresh"), "it stands still")
		body := question.Body.String()
		for _, text := range tc.question {
			require.Contains(t, body, text)
		}
		require.NotContains(t, body, "<table")
		stillLeft, stillHeld := bucket()
		require.Equal(t, left, stillLeft, "a question changes nothing")
		require.Equal(t, held, stillHeld, "a question changes nothing")

		res := post(p, tc.form+token, fromPage...)
		require.Equal(t, 303, res.Code, tc.form)
		require.Equal(t, "?id=192.0.2.1", res.Header().Get("Location"))
		left, held = bucket()
		require.Equal(t, tc.left, left)
		require.Equal(t, tc.held, held)
	}
	require.Empty(t, p.report().limit("address").Fullest, "the next view shows it")
	require.Equal(t, 200, ask(5, ""))

	for form, want := range map[string]int{
		"": 400, "reset=": 400, "reset=0000": 404, "end=" + token[1:]: 404, "hold=" + token: 400,
		"for=-1h&hold=" + token: 400, "for=1h&hold=" + New(lim, nil).bucketID(client).Token: 404,
		"reset=" + token + "&padding=" + strings.Repeat("x", 1<<12): 400,
		"reset=" + p.bucketID(stint.Name(99).Key("x")).Token:        503, "reset=" + p.newForm(): 404,
	} {
		require.Equal(t, want, post(p, form, fromPage...).Code, form)
	}
	require.Equal(t, 404, get(p, "?hold=0000").Code)
	require.Equal(t, 404, get(p, "?end="+p.bucketID(stint.Name(99).Key("x")).Token).Code)
	clock.Advance(time.Second)

	t.Run("not allowed", func(t *testing.T) {
		p := New(lim, nil)
		token := p.bucketID(client).Token
		require.NoError(t, errorOf(lim.Hold(client, lim.Now().Add(time.Hour))))
		for _, action := range []string{"reset=", "for=1h&hold=", "end="} {
			require.Equal(t, 403, post(p, action+token, fromPage...).Code)
			require.Equal(t, 403, get(p, "?"+action+token).Code)
		}
		for _, query := range []string{"", "?id=192.0.2.1"} {
			body := get(p, query).Body.String()
			require.Contains(t, body, "2001-09-09 02:46 UTC")
			require.NotContains(t, body, "…</a>")
		}
		_, held := bucket()
		require.Equal(t, time.Hour, held)
	})
}

// A page of another site must not make an operator's browser send a form.
func TestPageForgedForms(t *testing.T) {
	p, lim, clock := newPage(t, &Options{AllowReset: true}, nil)
	reset := "reset=" + p.bucketID(client).Token
	question := get(p, "?"+reset).Body.String()
	form := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(question)[1]
	own := reset + "&form=" + form

	// Behind a proxy, Host is upstream. A browser sends Sec-Fetch-Site over HTTPS
	// and to localhost only.
	proxied := []string{"Origin", "http://status.example"}
	for _, tc := range []struct {
		name, form string
		want       int
		fields     []string
	}{
		{"a program", reset, 303, nil},
		{"the page", reset, 303, fromPage},
		{"the page, over plain HTTP", reset, 303, []string{"Origin", "http://page.example"}},
		{"behind a proxy that changes Host, over HTTPS", reset, 303,
			append([]string{"Sec-Fetch-Site", "same-origin"}, proxied...)},
		{"behind a proxy that changes Host, over plain HTTP", own, 303, proxied},
		{"the same without a form", reset, 403, proxied},
		{"the same with a token for a form", reset + "&form=" + url.QueryEscape(reset[6:]), 403, proxied},
		{"the same with a form of another page", reset + "&form=" + New(lim, nil).newForm(), 403, proxied},
		{"another site", reset, 403, []string{"Origin", "https://evil.example"}},
		{"a sandbox", reset, 403, []string{"Origin", "null"}},
		{"another site, with a form", own, 403, []string{"Sec-Fetch-Site", "cross-site"}},
		{"another port or subdomain, with a form", own, 403, []string{"Sec-Fetch-Site", "same-site"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.True(t, lim.Allow(client))
			require.Equal(t, tc.want, post(p, tc.form, tc.fields...).Code)
			b, err := lim.Bucket(client)
			require.NoError(t, err)
			require.Equal(t, tc.want == 303, b.Remaining == 5)
			require.NoError(t, lim.Reset(client))
		})
	}
	clock.Advance(formLife)
	require.Equal(t, 403, post(p, own, proxied...).Code, "it is too old")
}

func TestPageSearch(t *testing.T) {
	p, lim, clock := newPage(t, &Options{AllowReset: true}, map[stint.Name]stint.Limit{perKey: stint.Blocked})
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
	require.Equal(t, 1, strings.Count(get(p, "?id=192.0.2.1").Body.String(), "End hold…"))
	require.Contains(t, get(p, "?id=").Body.String(), "No limit covers this id.")
	require.NotContains(t, get(p, "?id=<script>").Body.String(), "<script")

	t.Run("everyone", func(t *testing.T) {
		limits, err := stint.NewLimits(stint.Names{1: {Label: "all", ID: stint.Shared, Limit: stint.PerMinute(5)}})
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

// fullDisk is a Limiter that can make no hold durable.
type fullDisk struct{ *stint.Limiter }

func (fullDisk) Hold(stint.Key, time.Time) (time.Time, error) {
	return time.Time{}, errors.New("the disk is full")
}

// A hold that cannot get longer stays as it was.
func TestLongerHoldThatFails(t *testing.T) {
	lim, _ := newLimiter(t, nil, nil)
	until, err := lim.Hold(client, lim.Now().Add(time.Hour))
	require.NoError(t, err)
	p := New(fullDisk{lim}, &Options{AllowReset: true})
	require.Equal(t, 503, post(p, "for=24h&hold="+p.bucketID(client).Token, fromPage...).Code)
	b, err := lim.Bucket(client)
	require.NoError(t, err)
	require.True(t, b.HeldUntil.Equal(until), "until %v", b.HeldUntil)
}

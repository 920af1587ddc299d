package httplimit

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// A scenario is a script of requests and answers. Each line is one of
//
//	401: 401 429          requests whose handler answers 401, and what the client gets
//	200 k: 200            a request with "X-Key: k"
//	Field: value          a field of the last response; "Body: text" is in its body
//	Fields: A b / C d     all its rate limit fields
//	Observed: login denied, ...  decisions of the last request
//	Error: text           the only new error
//	+12s                  time passes
//	spend login 3         another client spends
//	left login 2          what is left in the client's bucket
//	held login 1h0m0s     the rest of its hold
//
// Limits are 5 a minute. The script must name each error.
type scenario struct {
	limits          map[stint.Name]stint.Limit
	opts, outerOpts Options
	rules, outer    []Rule // outer: of middleware around the other
	inside          func(limiter, *testClock)
	script          string
}

var ofClient = map[string]stint.Key{ // buckets of httptest's client
	"address": perAddress.Key("192.0.2.1"), "login": failures.Key("192.0.2.1"), "key": perKey.Key("k"),
	"everyone": everyone.Key(""),
}

func runScenarios(t *testing.T, scenarios map[string]scenario) {
	for name, s := range scenarios {
		t.Run(name, s.run)
	}
}

func (s scenario) run(t *testing.T) {
	lim, clock := newLimiter(t, s.limits)
	var errs []error
	var observed []string
	s.opts.Observers = []Observer{{}, {
		Error: func(_ *http.Request, err error) { errs = append(errs, err) },
		Decisions: func(_ *http.Request, ds []rules.Decision) {
			for _, d := range ds {
				word := map[bool]string{true: " allowed", false: " denied"}[d.Allowed]
				if d.After {
					word = " checked"
				}
				observed = append(observed, d.Label+word)
			}
		},
	}}
	h := Middleware(lim, &s.opts, s.rules...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.inside != nil {
			s.inside(lim, clock)
		}
		status(w, r)
	}))
	if s.outer != nil {
		h = Middleware(lim, &s.outerOpts, s.outer...)(h)
	}
	var w *httptest.ResponseRecorder
	for line := range strings.Lines(s.script) {
		line = strings.TrimSpace(line) + " "
		before, want, colon := strings.Cut(line, ": ")
		words, want := strings.Fields(before), strings.TrimSpace(want)
		switch {
		case len(words) == 0:
		case line[0] == '+':
			d, err := time.ParseDuration(words[0])
			require.NoError(t, err)
			clock.pass(d)
		case line[0] >= '1' && line[0] <= '9':
			var got []string
			for range strings.Fields(want) {
				observed = nil
				r := httptest.NewRequest("GET", "/?status="+words[0], nil)
				r.Header["X-Key"] = words[1:]
				w = httptest.NewRecorder()
				h.ServeHTTP(w, r)
				got = append(got, strconv.Itoa(w.Code))
			}
			require.Equal(t, want, strings.Join(got, " "), line)
		case before == "Body":
			require.Contains(t, w.Body.String(), want)
		case before == "Observed":
			require.Equal(t, want, strings.Join(observed, ", "))
		case before == "Error":
			require.Len(t, errs, 1, line)
			require.ErrorContains(t, errs[0], want)
			errs = nil
		case before == "Fields":
			var all []string
			for _, field := range slices.Sorted(maps.Keys(w.Result().Header)) {
				if strings.Contains(field, "Ratelimit") {
					all = append(all, field+" "+w.Result().Header.Get(field))
				}
			}
			require.Equal(t, want, strings.Join(all, " / "))
		case colon:
			require.Equal(t, want, w.Result().Header.Get(before), line)
		case words[0] == "left":
			require.Equal(t, words[2], strconv.FormatInt(left(t, lim, ofClient[words[1]]), 10), line)
		case words[0] == "held":
			rest := time.Duration(0)
			if until := heldUntil(t, lim, ofClient[words[1]]); !until.IsZero() {
				rest = until.Sub(clock.now())
			}
			require.Equal(t, words[2], rest.String(), line)
		case words[0] == "spend":
			n, err := strconv.ParseInt(words[2], 10, 64)
			require.NoError(t, err)
			spend(t, lim, ofClient[words[1]], n)
		default:
			require.Fail(t, "unknown line", line)
		}
	}
	require.Empty(t, errs)
}

package httplimit

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A scenario is what a client meets. Each line of its script is one of
//
//	401: 401 429                requests whose handler answers 401, and what the client gets
//	200 k: 200                  a request with "X-Key: k"
//	Field: value                a field of the last response; "Body: text" is in its body
//	Observed: login denied ...  what the observer was told of the last request
//	Error: text                 the only error that the observer was told since the last such line
//	+12s                        time passes
//	spend login 3               somebody else spends
//	left login 2                what is left in the client's bucket
//	held login 1h0m0s           the rest of its hold
//
// Limits are 5 a minute. The script must name each error.
type scenario struct {
	limits map[stint.Name]stint.Limit
	opts   Options
	rules  []Rule
	outer  []Rule // of middleware around the other
	inside func(*stint.Limiter, *testClock)
	script string
}

var ofClient = map[string]stint.Key{ // buckets of httptest's client
	"address": perAddress.Key("192.0.2.1"), "login": failures.Key("192.0.2.1"), "key": perKey.Key("k"), "everyone": everyone.Key(""),
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
	s.opts.Observers = append(s.opts.Observers, Observer{
		Error: func(_ *http.Request, err error) { errs = append(errs, err) },
		Decisions: func(_ *http.Request, ds []Decision) {
			for _, d := range ds {
				word := map[bool]string{true: "allowed", false: "denied"}[d.Allowed]
				if d.After {
					word = "checked"
				}
				observed = append(observed, d.Label+" "+word)
			}
		},
	})
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.inside != nil {
			s.inside(lim, clock)
		}
		code, err := strconv.Atoi(r.URL.Query().Get("status"))
		require.NoError(t, err)
		w.WriteHeader(code)
	})
	h = New(lim, &s.opts, s.rules...)(h)
	if s.outer != nil {
		h = New(lim, nil, s.outer...)(h)
	}
	var res *http.Response
	for line := range strings.Lines(s.script) {
		line = strings.TrimSpace(line)
		before, after, colon := strings.Cut(line+" ", ": ")
		after = strings.TrimSpace(after)
		words := strings.Fields(before)
		switch {
		case line == "":
		case line[0] == '+':
			d, err := time.ParseDuration(line[1:])
			require.NoError(t, err)
			clock.pass(d)
		case line[0] >= '1' && line[0] <= '9':
			var got []string
			for range strings.Fields(after) {
				observed = nil
				r := httptest.NewRequest("GET", "/?status="+words[0], nil)
				for _, key := range words[1:] {
					r.Header.Add("X-Key", key)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				res = w.Result()
				got = append(got, strconv.Itoa(res.StatusCode))
			}
			require.Equal(t, after, strings.Join(got, " "), line)
		case before == "Body" && colon:
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), after)
			res.Body = io.NopCloser(strings.NewReader(string(body)))
		case before == "Observed" && colon:
			require.Equal(t, after, strings.Join(observed, ", "))
		case before == "Error" && colon:
			require.Len(t, errs, 1, line)
			require.ErrorContains(t, errs[0], after)
			errs = nil
		case colon:
			require.Equal(t, after, res.Header.Get(before), line)
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

package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/otellimit"
	"github.com/stint-go/stint/rules"
)

// decision returns the decision of a rule.
func decision(label string, allowed bool, remaining int64, retry time.Duration) rules.Decision {
	d := rules.Decision{Label: label}
	d.Allowed, d.Remaining, d.RetryAfter, d.Limit = allowed, remaining, retry, stint.PerHour(5)
	return d
}

func TestObserver(t *testing.T) {
	yes, no := decision("address", true, 3, 0), decision("login", false, 0, time.Minute)
	fewer, longer := decision("fewer", true, 1, 0), decision("longer", false, 0, time.Hour)
	shadow, waiting := decision("shadow", false, 0, time.Hour), decision("login", true, 1, 0)
	shadow.Shadow, waiting.After = true, true
	refused := decision("login", false, 0, time.Minute)
	refused.After = true
	full, tried := decision("upload", false, 0, time.Second), decision("upload", true, 3, 0)
	full.InFlight = rules.InFlight{Limit: 2, Running: 2, Denied: true}
	full.Limit, tried.Shadow = stint.Unlimited, true
	tried.InFlight = rules.InFlight{Limit: 2, Running: 3, Denied: true, Shadow: true}
	blocked := decision("login", false, 0, math.MaxInt64)
	blocked.Limit = stint.Blocked
	for name, c := range map[string]struct {
		ds       []rules.Decision
		err      error
		requests map[string]float64
		span     []attribute.KeyValue
	}{
		"allowed": {
			ds:       []rules.Decision{yes, fewer},
			requests: map[string]float64{"stint.decision=allowed,stint.limit=address": 1, "stint.decision=allowed,stint.limit=fewer": 1},
			span: []attribute.KeyValue{attribute.String("stint.decision", "allowed"), attribute.String("stint.limit", "fewer"),
				attribute.Int64("stint.remaining", 1)},
		},
		"denied": {
			ds: []rules.Decision{yes, no, longer, shadow},
			requests: map[string]float64{
				"stint.decision=allowed,stint.limit=address": 1, "stint.decision=denied,stint.limit=login": 1,
				"stint.decision=denied,stint.limit=longer":                   1,
				"stint.decision=denied,stint.limit=shadow,stint.shadow=true": 1,
			},
			span: []attribute.KeyValue{attribute.String("stint.decision", "denied"), attribute.String("stint.limit", "longer"),
				attribute.Int64("stint.remaining", 0), attribute.Float64("stint.retry_after", 3600)},
		},
		"shadow only": {
			ds:       []rules.Decision{shadow},
			requests: map[string]float64{"stint.decision=denied,stint.limit=shadow,stint.shadow=true": 1},
		},
		"not spent yet": {
			ds: []rules.Decision{waiting},
			span: []attribute.KeyValue{attribute.String("stint.decision", "allowed"), attribute.String("stint.limit", "login"),
				attribute.Int64("stint.remaining", 1)},
		},
		"denied before a status": {
			ds:       []rules.Decision{refused},
			requests: map[string]float64{"stint.decision=denied,stint.limit=login": 1},
			span: []attribute.KeyValue{attribute.String("stint.decision", "denied"), attribute.String("stint.limit", "login"),
				attribute.Int64("stint.remaining", 0), attribute.Float64("stint.retry_after", 60)},
		},
		"no place": {
			ds:       []rules.Decision{full},
			requests: map[string]float64{"stint.decision=denied,stint.in_flight=true,stint.limit=upload": 1},
			span: []attribute.KeyValue{attribute.String("stint.decision", "denied"), attribute.String("stint.limit", "upload"),
				attribute.Float64("stint.retry_after", 1)},
		},
		"no place for a Shadow rule": {
			ds:       []rules.Decision{tried},
			requests: map[string]float64{"stint.decision=denied,stint.in_flight=true,stint.limit=upload,stint.shadow=true": 1},
		},
		"blocked": {
			ds:       []rules.Decision{blocked},
			requests: map[string]float64{"stint.decision=denied,stint.limit=login": 1},
			span:     []attribute.KeyValue{attribute.String("stint.decision", "denied"), attribute.String("stint.limit", "login")},
		},
		"error": {
			err:      stint.ErrFull,
			requests: map[string]float64{"stint.decision=error": 1},
			span:     []attribute.KeyValue{attribute.String("stint.decision", "error")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			provider, reader := newMeter(t)
			spans := tracetest.NewSpanRecorder()
			tracer := tracesdk.NewTracerProvider(tracesdk.WithSpanProcessor(spans)).Tracer("test")
			o, err := otellimit.NewObserver(provider.Meter("test"))
			require.NoError(t, err)
			ctx, span := tracer.Start(context.Background(), "request")
			if c.err != nil {
				fail(o, ctx, c.err)
			} else {
				decide(o, ctx, c.ds)
			}
			span.End()
			metrics := collect(t, reader)
			got := series(t, metrics["stint.requests"])
			if c.requests == nil {
				c.requests = map[string]float64{}
			}
			assert.Equal(t, c.requests, got)
			assert.ElementsMatch(t, c.span, spans.Ended()[0].Attributes())
		})
	}
}

// The attributes are on the span of the request, and the counts are those of
// the Limiter.
func TestObserverMiddleware(t *testing.T) {
	provider, reader := newMeter(t)
	spans := tracetest.NewSpanRecorder()
	tracer := tracesdk.NewTracerProvider(tracesdk.WithSpanProcessor(spans)).Tracer("test")
	lim, err := stint.New(stint.NewMemStore(), newLimits(t, names), nil)
	require.NoError(t, err)
	defer lim.Close()
	register(t, provider, lim, nil)
	o, err := otellimit.NewObserver(provider.Meter("test"))
	require.NoError(t, err)
	limited := httplimit.Middleware(lim, &httplimit.Options{Observers: []httplimit.Observer{otellimit.For[*http.Request](o)}},
		httplimit.Rule{Key: httplimit.ByIP(perAddress)},
		httplimit.Rule{Key: httplimit.ByHeader(logins, "User"), Optional: true, Count: httplimit.AuthFailed},
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }))
	ask := func(user string) {
		r := httptest.NewRequest("GET", "/", nil)
		if user != "" {
			r.Header.Set("User", user)
		}
		ctx, span := tracer.Start(r.Context(), "request")
		limited.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		span.End()
	}
	ask("ada")
	ask("ada")
	ask("\xff") // any id
	for range 4 {
		ask("")
	}
	metrics := collect(t, reader)
	requests, decisions := series(t, metrics["stint.requests"]), series(t, metrics["stint.decisions"])
	assert.Equal(t, map[string]float64{
		"stint.decision=allowed,stint.limit=address": 6, // one of them denied for the login
		"stint.decision=denied,stint.limit=address":  1,
		"stint.decision=allowed,stint.limit=login":   2,
		"stint.decision=denied,stint.limit=login":    1,
	}, requests)
	assert.Equal(t, map[string]float64{ // of spends: a denial for the login is a check, and spends nothing
		"stint.decision=allowed,stint.limit=address": 5,
		"stint.decision=denied,stint.limit=address":  1,
		"stint.decision=allowed,stint.limit=login":   2,
		"stint.decision=denied,stint.limit=login":    0,
	}, only(decisions, "address", "login"))
	var got []string
	for _, span := range spans.Ended() {
		set := attribute.NewSet(span.Attributes()...)
		limit, _ := set.Value("stint.limit")
		verdict, _ := set.Value("stint.decision")
		got = append(got, limit.AsString()+" "+verdict.AsString())
	}
	assert.Equal(t, []string{"login allowed", "login denied", "login allowed",
		"address allowed", "address allowed", "address allowed", "address denied"}, got)
}

// only returns the series of some limits.
func only(series map[string]float64, labels ...string) map[string]float64 {
	some := make(map[string]float64)
	for name, v := range series {
		for _, label := range labels {
			if strings.HasSuffix(name, "stint.limit="+label) {
				some[name] = v
			}
		}
	}
	return some
}

// No id is in any attribute of the metrics or the spans.
func TestNoID(t *testing.T) {
	provider, reader := newMeter(t)
	spans := tracetest.NewSpanRecorder()
	tracer := tracesdk.NewTracerProvider(tracesdk.WithSpanProcessor(spans)).Tracer("test")
	lim, err := stint.New(stint.NewMemStore(), newLimits(t, names), nil)
	require.NoError(t, err)
	defer lim.Close()
	register(t, provider, lim, nil)
	o, err := otellimit.NewObserver(provider.Meter("test"))
	require.NoError(t, err)
	const id = "a-very-secret-id"
	for range 3 {
		ctx, span := tracer.Start(context.Background(), "request")
		d, err := lim.Spend(logins.Key(id), 1)
		require.NoError(t, err)
		decide(o, ctx, []rules.Decision{{Decision: d, Label: "login", Cost: 1}})
		_, err = lim.Spend(logins.Key(id), 1000)
		fail(o, ctx, errors.Join(err, errors.New(id)))
		span.End()
	}
	for name, m := range collect(t, reader) {
		for attrs := range series(t, m) {
			assert.NotContains(t, attrs, id, name)
		}
	}
	for _, span := range spans.Ended() {
		assert.NotContains(t, fmt.Sprint(span.Attributes(), span.Events(), span.Status()), id)
	}
}

func TestObserverConcurrent(t *testing.T) {
	provider, reader := newMeter(t)
	o, err := otellimit.NewObserver(provider.Meter("test"))
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 1000 {
				decide(o, context.Background(), []rules.Decision{decision(fmt.Sprint(i%100), i%2 == 0, 1, 0)})
			}
		})
	}
	all.Wait()
	requests := series(t, collect(t, reader)["stint.requests"])
	assert.Len(t, requests, 100)
	for name, n := range requests {
		assert.Equal(t, 40., n, name)
	}
}

package otellimit

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// An Observer counts what rules tell clients about their requests, and sets the
// attributes stint.decision, stint.limit, stint.remaining and stint.retry_after on the
// span of each request that is recorded. [NewObserver] makes one. Any number of middlewares may share it.
type Observer struct {
	requests metric.Int64Counter
	failed   []metric.AddOption
	series   sync.Map // of *series, by request
}

// series is what requests of one kind have in common.
type series struct {
	add  []metric.AddOption
	span []attribute.KeyValue
}

// request is a kind of requests, which have one series.
type request struct {
	label string
	rules.Verdict
}

// NewObserver returns an observer for httplimit and grpclimit:
//
//	observer, err := otellimit.NewObserver(meter)
//	httplimit.Options{Observers: []httplimit.Observer{otellimit.For[*http.Request](observer)}}
//	grpclimit.Options{Observers: []grpclimit.Observer{otellimit.For[grpclimit.Call](observer)}}
//
// A request counts once for each rule that applies to it. A rule with Count
// counts a request when it spends, or denies. The error is that of the Meter.
func NewObserver(m metric.Meter) (*Observer, error) {
	c, err := m.Int64Counter("stint.requests", metric.WithUnit("{request}"),
		metric.WithDescription("What rules told clients about their requests."))
	if err != nil {
		return nil, err
	}
	return &Observer{requests: c, failed: adding(decisionKey.String("error"))}, nil
}

func adding(attrs ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
}

// For returns an Observer as the Options of a door take it.
func For[R rules.Request](o *Observer) rules.Observer[R] {
	return rules.Observer[R]{
		Decisions: func(r R, ds []rules.Decision) { o.decisions(r.Context(), ds) },
		Error:     func(r R, err error) { o.error(r.Context(), err) },
	}
}

// decisions counts the decisions of rules about one request. The span of ctx
// gets the strictest of them that can deny: a denial with the longest
// RetryAfter, or else the decision that leaves the fewest tokens. It gets how many
// remain, and how many seconds a denied client must wait.
func (o *Observer) decisions(ctx context.Context, ds []rules.Decision) {
	var strictest *rules.Decision
	for i := range ds {
		d := &ds[i]
		if !d.Shadow && (strictest == nil || d.Stricter(&strictest.Decision)) {
			strictest = d
		}
		if !d.After || !d.Allowed {
			o.requests.Add(ctx, 1, o.of(d).add...)
		}
	}
	if strictest == nil {
		return
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		attrs := append(make([]attribute.KeyValue, 0, 4), o.of(strictest).span...)
		if strictest.Limit.Count > 0 {
			attrs = append(attrs, remainingKey.Int64(strictest.Remaining))
		}
		if strictest.RetryAfter > 0 && strictest.Limit != stint.Blocked {
			attrs = append(attrs, retryAfterKey.Float64(strictest.RetryAfter.Seconds()))
		}
		span.SetAttributes(attrs...)
	}
}

// error counts an error. The span of ctx gets stint.decision "error", until
// decisions is called, as after an error of a Shadow rule.
func (o *Observer) error(ctx context.Context, err error) {
	o.requests.Add(ctx, 1, o.failed...)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(decisionKey.String("error"))
	}
}

// of returns the series of a decision.
func (o *Observer) of(d *rules.Decision) *series {
	r := request{d.Label, d.Verdict()}
	if s, ok := o.series.Load(r); ok {
		return s.(*series)
	}
	word := "allowed"
	if r.Denied {
		word = "denied"
	}
	attrs := []attribute.KeyValue{decisionKey.String(word), limitKey.String(r.label)}
	s := &series{span: slices.Clone(attrs)}
	if r.Shadow {
		attrs = append(attrs, shadowKey.Bool(true))
	}
	if r.InFlight {
		attrs = append(attrs, inFlightKey.Bool(true))
	}
	s.add = adding(attrs...)
	o.series.Store(r, s)
	return s
}

// Package otellimit reports, through OpenTelemetry, what a stint.Limiter does.
//
// [Register] makes instruments that read a Limiter's Stats whenever metrics are
// collected, at no cost to decisions:
//
//	registration, err := otellimit.Register(meter, limiter, nil)
//
// An [Observer] counts the requests that httplimit or grpclimit decide, and puts
// the decision on the request's span, if that is recorded.
//
// # Metrics of Register
//
//	stint.decisions         {decision}  decisions to spend or to reserve, by stint.limit and stint.decision
//	stint.errors            {error}     calls that returned an error, by stint.limit
//	stint.buckets.resident  {bucket}    buckets in memory
//	stint.buckets.dirty     {bucket}    buckets in memory, changed since they were saved
//	stint.flush.duration    s           how long the last flush took
//	stint.commit.duration   s           how long the last commit took
//	stint.file.size         By          size of the file
//	stint.file.free         By          part of the file in free pages
//	stint.journal.size      By          part of the file in the journal
//	stint.journal.buckets   {bucket}    buckets whose newest state is in the journal
//	stint.clock.steps       {step}      steps of the wall clock, by stint.clock.direction
//	stint.healthy                       1 if Health returns nil, else 0
//
// stint.limit is the label of a limit, or "_OTHER" for errors of Names that are
// not declared. stint.decision is "allowed" or "denied". stint.clock.direction
// is "forward" or "backward". The instruments of the file report nothing if the
// Limiter has no file, and those of flushes report nothing before the first
// flush.
//
// # Metric of Observer
//
//	stint.requests  {request}  by stint.limit, stint.decision and stint.shadow
//
// stint.decision is "allowed", "denied" or "error". An error has no stint.limit.
// stint.shadow is true for a Shadow rule, and absent otherwise.
//
// # Cardinality
//
// No attribute is ever an id: ids are personal data, and there are too many.
// The SDK keeps at most 2,000 series of an instrument, and adds the others up in
// one series with the attribute otel.metric.overflow. stint.decisions takes two
// series for each declared limit. If you declare more than 999 limits, raise the
// bound with the SDK's WithCardinalityLimit.
package otellimit

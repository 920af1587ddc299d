// Package otellimit reports, through OpenTelemetry, what a stint.Limiter does.
//
// [Register] makes instruments that read a Limiter whenever metrics are collected, at
// no cost to decisions:
//
//	registration, err := otellimit.Register(meter, limiter, nil)
//
// An [Observer] counts what httplimit or grpclimit tell clients about their requests,
// and puts the decision on the request's span, if that is recorded.
//
// Requests and decisions differ. A decision is what a bucket did: it spent tokens, or
// refused to. Those for Shadow rules are among them, although they stop no request. A
// check is no decision, so a denial by a lock-out, by a rule with Count, or for want of
// a place in flight is none. Requests have all of these: use them to see what clients
// were told.
//
// # Metrics of Register
//
//	stint.decisions         {decision}  decisions of buckets, by stint.limit and stint.decision
//	stint.errors            {error}     calls that returned an error, by stint.limit
//	stint.buckets.held      {bucket}    buckets that are held, by stint.limit
//	stint.requests.waiting  {request}   requests in queues, by stint.limit
//	stint.requests.in_flight {request}  requests with a place in flight, by stint.limit
//	stint.buckets.resident  {bucket}    buckets in memory
//	stint.buckets.dirty     {bucket}    buckets in memory, changed since they were saved
//	stint.loads             {load}      reads of buckets that were not in memory
//	stint.evictions         {eviction}  buckets removed from memory to make space
//	stint.flushes           {flush}     flushes that wrote something
//	stint.flush.failures    {failure}   failed flushes
//	stint.flush.buckets     {bucket}    buckets that flushes wrote or deleted
//	stint.flush.duration    s           how long the last flush took
//	stint.flush.longest     s           how long the longest flush took
//	stint.commits, stint.commit.failures, .buckets, .duration and .longest: of commits
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
// Limiter has no file, and the durations of flushes report nothing before the first
// flush. Of the processes that share a file, the owner reports all of these, and each
// of the others its health and its requests in flight.
//
// In Prometheus the names are stint_decisions_total, stint_flush_duration_seconds and
// so on, and the labels stint_limit and stint_decision. The status page of httplimit
// and stint serve write the same.
//
// # Metric of Observer
//
//	stint.requests  {request}  by stint.limit, stint.decision, stint.shadow and stint.in_flight
//
// stint.decision is "allowed", "denied" or "error". An error has no stint.limit.
// stint.shadow is true for a Shadow rule, and absent otherwise. stint.in_flight is true
// if a request was denied because it found no place, and absent otherwise.
//
// # Attributes of a span
//
// stint.decision and stint.limit are those of the strictest rule. stint.remaining is
// how many tokens remain, if there is a limit, and stint.retry_after how many seconds a
// denied client must wait.
//
// # Cardinality
//
// No attribute is ever an id: ids are personal data, and there are too many.
// The SDK keeps at most 2,000 series of an instrument, and adds the others up in
// one series with the attribute otel.metric.overflow. stint.decisions takes two
// series for each declared limit. If you declare more than 999 limits, raise the
// bound with the SDK's WithCardinalityLimit.
package otellimit

// Package statuspage shows an operator what the limits of a [stint.Limiter]
// do, as a page, as JSON and for Prometheus. The page only looks. The command stint
// resets and holds buckets.
//
// The program makes a [Page] with [New], serves it where only operators can
// reach it, and passes [Page.Observer] to the middleware of httplimit. The
// Limiter counts every decision, but it does not know when each was made, or
// which buckets are denied most. The page learns both as an observer. It never
// scans the buckets, its memory is bounded, and it needs no script and nothing
// from other hosts.
//
// # JSON
//
// A program reads ?format=json. Fields may be added, and none changes its
// meaning. Names that end in _seconds are seconds; those in _per_second are
// rates. An empty optional field is left out.
//
//	time, since          now, and when the page was made (RFC 3339)
//	healthy, problem     Limiter.Health, and its text (optional)
//	version, go          of stint and of Go
//	resident, dirty      buckets in memory, and those changed since they were saved
//	loads, evictions     buckets loaded, and evicted
//	clock_steps_forward, clock_steps_backward
//	file_bytes, file_free_bytes       the file and its free pages (optional)
//	journal_bytes, journal_buckets    the journal in it (optional)
//	flush, commit        each: count, buckets, failures, last_seconds,
//	                     longest_seconds
//	allowed_per_second, denied_per_second  in the last slot of the charts
//	holds, waiting       buckets that are held, and requests in queues
//	held                 a list of holds, at most 100, latest end first:
//	  label, id, until, held_seconds
//	limits               a list, by number:
//	  label, number
//	  limit                           as stint.ParseLimit reads it; left out, with
//	                                  the next five, if there is no default:
//	  burst, count, period_seconds, queue, durability    (each optional)
//	  overrides                       ids with a limit of their own (optional)
//	  holds, waiting
//	  in_flight, in_flight_peak       places taken now, in all buckets together, and
//	                                  the most in one bucket since the start
//	  requests_allowed, requests_denied, shadow_denied, in_flight_denied
//	                                  requests that were observed: what the rules told
//	                                  clients, what a Shadow rule would have denied, and
//	                                  those without a place
//	  allowed, denied, errors         decisions since the Limiter was opened
//	  allowed_per_second, denied_per_second, slot_seconds
//	  allowed_history, denied_history per second in each slot, oldest first
//	  fullest, most_denied            lists of buckets, each:
//	    id, burst, remaining          "#" and six digits with HideIDs
//	    retry_after_seconds           until a cost of 1 passes
//	    reset_after_seconds           until it is full, and no longer held
//	    denied                        a lower bound for the denials in the last five
//	                                  to ten minutes (optional)
//
// # Requests and decisions
//
// A request counts as allowed or denied for each rule that applies to it: that is what
// clients were told, by lock-outs, by rules with Count and by bounds on requests in
// flight, too. A decision is what a bucket did: it spent, or it refused to. The
// decisions for Shadow rules are among them, and checks are not. The page knows the
// requests of the middleware that it observes, and all decisions. The charts are of
// decisions. In Prometheus they are stint_requests_total and stint_decisions_total.
// All names and labels are those that otellimit's metrics have there, so one dashboard
// reads both.
//
// # Tests
//
// The tests of this directory run without a browser. browser/run.sh starts
// examples/server under load and looks at its page in Chromium.
package statuspage

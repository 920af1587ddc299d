// Package statuspage shows an operator what the limits of a [stint.Limiter]
// do, as a page, as JSON and for Prometheus, and lets the operator reset and hold
// buckets.
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
//	resident, loads, evictions        buckets in memory, loaded, and evicted
//	clock_steps_forward, clock_steps_backward
//	file_bytes, file_free_bytes       the file and its free pages (optional)
//	journal_bytes, journal_buckets    the journal in it (optional)
//	flush, commit        each: count, buckets, failures, last_seconds,
//	                     longest_seconds
//	allowed_per_second, denied_per_second  in the last slot of the charts
//	holds, waiting       buckets that are held, and requests in queues
//	held                 a list of holds, at most 100, latest end first:
//	  label, id, until, held_seconds, token
//	limits               a list, by number:
//	  label, number
//	  limit                           as stint.ParseLimit reads it; left out, with
//	                                  the next five, if there is no default:
//	  burst, count, period_seconds, queue, durability    (each optional)
//	  overrides                       ids with a limit of their own (optional)
//	  holds, waiting
//	  in_flight, in_flight_peak       places taken now, in all buckets together, and
//	                                  the most in one bucket since the start
//	  in_flight_denied                requests without a place that were observed
//	  allowed, denied, errors         counts since the Limiter was opened
//	  shadow_denials                  whether Shadow rules made some of the denials
//	  allowed_per_second, denied_per_second, slot_seconds
//	  allowed_history, denied_history per second in each slot, oldest first
//	  fullest, most_denied            lists of buckets, each:
//	    id, burst, remaining          "#" and six digits with HideIDs
//	    retry_after_seconds           until a cost of 1 passes
//	    reset_after_seconds           until it is full, and no longer held
//	    denied                        a lower bound for the denials in the last five
//	                                  to ten minutes (optional)
//	    token                         for a POST, until the program ends
//
// POST reset=token fills a bucket and ends its hold, end=token ends the hold,
// and hold=token&for=24h holds it. They need Options.AllowReset.
//
// # Locks
//
// Page.sampling is held while a sample is taken or a report is made, which may
// wait for the store. Page.mu is held for moments only, because requests to
// the program wait for it; it may be taken while sampling is held.
//
// # Tests
//
// The tests of this directory run without a browser. browser/run.sh starts
// examples/server under load and looks at its page in Chromium.
package statuspage

// Package statuspage shows an operator what the limits of a [stint.Limiter]
// do: as a page, as JSON, for Prometheus, and as a copy of the file.
//
// The program makes a [Page] with [New], serves it where only operators can
// reach it, and passes [Page.Observer] to the middleware of httplimit. The
// Limiter counts every decision, but it does not know when each was made, nor
// which buckets are denied most. The page learns both as an observer. It never
// scans the buckets, its memory is bounded, and it needs no script and nothing
// from other hosts.
//
// # Files
//
//	page.go        Page, its options, and what a request to it does
//	sample.go      the observer, and the samples of the Limiter's counts
//	series.go      the chart of one limit: decisions in slots of five seconds
//	topk.go        the buckets that count most, in bounded memory
//	report.go      everything that the page shows, as one value: the JSON
//	html.go        the report as HTML, with page.html and page.css
//	prometheus.go  the report in Prometheus' text format
//
// # Locks
//
// Page.sampling is held while a sample is taken or a report is made, which may
// wait for the store. Page.mu is held for moments only, because requests to
// the program wait for it; it may be taken while sampling is held. Page.copying
// is held while a copy of the file is sent, and no other lock is taken then.
//
// # Tests
//
// The tests of this directory run without a browser. browser/run.sh starts
// examples/server under load and looks at its page in Chromium.
package statuspage

package statuspage

import (
	"fmt"
	"io"
	"strings"
)

// writePrometheus writes a report in Prometheus' text format, version 0.0.4.
// No label holds an id.
func writePrometheus(w io.Writer, rep *report) {
	var b strings.Builder
	metric := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	one := func(name, kind, help string, value float64) {
		metric(name, kind, help)
		fmt.Fprintf(&b, "%s %v\n", name, value)
	}

	perLimit := func(name, kind, help string, of func(l *limitReport) int64) {
		metric(name, kind, help)
		for i := range rep.Limits {
			l := &rep.Limits[i]
			fmt.Fprintf(&b, "%s{limit=%s} %d\n", name, labelText(l.Label), of(l))
		}
	}

	metric("stint_decisions_total", "counter", "Decisions to spend or to reserve, including those of Shadow rules.")
	for _, l := range rep.Limits {
		label := labelText(l.Label)
		fmt.Fprintf(&b, "stint_decisions_total{limit=%s,decision=\"allowed\"} %d\n", label, l.Allowed)
		fmt.Fprintf(&b, "stint_decisions_total{limit=%s,decision=\"denied\"} %d\n", label, l.Denied)
	}
	perLimit("stint_errors_total", "counter", "Calls that returned an error.",
		func(l *limitReport) int64 { return l.Errors })
	perLimit("stint_held_buckets", "gauge", "Buckets that are held, for example by a lock-out.",
		func(l *limitReport) int64 { return l.Holds })
	perLimit("stint_waiting_requests", "gauge", "Requests that wait in queues.",
		func(l *limitReport) int64 { return l.Waiting })
	perLimit("stint_in_flight_requests", "gauge", "Requests that have a place in flight.",
		func(l *limitReport) int64 { return l.InFlight })
	perLimit("stint_in_flight_denied_total", "counter", "Requests that found no place in flight.",
		func(l *limitReport) int64 { return l.InFlightDenied })

	metric("stint_build_info", "gauge", "Always 1; the labels have the versions.")
	fmt.Fprintf(&b, "stint_build_info{version=%s,goversion=%s} 1\n", labelText(rep.Version), labelText(rep.Go))

	healthy := 0.0
	if rep.Healthy {
		healthy = 1
	}
	one("stint_healthy", "gauge", "1 if the limiter is healthy, else 0.", healthy)
	one("stint_resident_buckets", "gauge", "Buckets in memory.", float64(rep.Resident))
	one("stint_loads_total", "counter", "Reads of buckets that were not in memory.", float64(rep.Loads))
	one("stint_evictions_total", "counter", "Buckets removed from memory to make space.", float64(rep.Evictions))
	for _, v := range []struct {
		verb, plural, past, help string
		writeReport
	}{
		{"flush", "flushes", "flushed", "Flushes that wrote something.", rep.Flush},
		{"commit", "commits", "committed", "Commits that decisions waited for.", rep.Commit},
	} {
		one("stint_"+v.plural+"_total", "counter", v.help, float64(v.Count))
		one("stint_"+v.verb+"_failures_total", "counter", "Failed "+v.plural+".", float64(v.Failures))
		one("stint_"+v.past+"_buckets_total", "counter", "Buckets that were "+v.past+".", float64(v.Buckets))
		one("stint_"+v.verb+"_last_seconds", "gauge", "Duration of the last "+v.verb+".", v.Last)
		one("stint_"+v.verb+"_longest_seconds", "gauge", "Duration of the longest "+v.verb+".", v.Longest)
	}
	if rep.FileBytes > 0 {
		one("stint_file_bytes", "gauge", "Size of the file.", float64(rep.FileBytes))
		one("stint_file_free_bytes", "gauge", "Bytes of the file in free pages.", float64(rep.FileFree))
		one("stint_journal_bytes", "gauge", "Size of the journal in the file.", float64(rep.Journal))
		one("stint_journal_buckets", "gauge", "Buckets whose newest state is in the journal.", float64(rep.Journaled))
	}
	metric("stint_clock_steps_total", "counter", "Steps of the wall clock.")
	fmt.Fprintf(&b, "stint_clock_steps_total{direction=\"forward\"} %d\n", rep.Forward)
	fmt.Fprintf(&b, "stint_clock_steps_total{direction=\"backward\"} %d\n", rep.Backward)
	io.WriteString(w, b.String()) // the client may have disconnected
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labelText returns the value of a label, in quotes.
func labelText(s string) string {
	return `"` + labelEscaper.Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}

package httplimit

import (
	"fmt"
	"io"
	"strings"
)

// writePrometheus writes the counters in Prometheus' text format, version 0.0.4. No label holds an id.
func writePrometheus(w io.Writer, rep *report) {
	var b strings.Builder
	metric := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	one := func(name, kind, help string, value float64) {
		metric(name, kind, help)
		fmt.Fprintf(&b, "%s %v\n", name, value)
	}

	metric("stint_decisions_total", "counter", "Decisions to spend or to reserve, those of Shadow rules too.")
	for _, l := range rep.Limits {
		label := labelText(l.Label)
		fmt.Fprintf(&b, "stint_decisions_total{limit=%s,decision=\"allowed\"} %d\n", label, l.Allowed)
		fmt.Fprintf(&b, "stint_decisions_total{limit=%s,decision=\"denied\"} %d\n", label, l.Denied)
	}
	metric("stint_errors_total", "counter", "Calls that returned an error.")
	for _, l := range rep.Limits {
		fmt.Fprintf(&b, "stint_errors_total{limit=%s} %d\n", labelText(l.Label), l.Errors)
	}

	healthy := 0.0
	if rep.Healthy {
		healthy = 1
	}
	one("stint_healthy", "gauge", "1, or 0 where something is wrong.", healthy)
	one("stint_resident_buckets", "gauge", "Buckets in memory.", float64(rep.Resident))
	one("stint_loads_total", "counter", "Questions to the store, for buckets that were not in memory.", float64(rep.Loads))
	one("stint_evictions_total", "counter", "Buckets removed from memory to make room.", float64(rep.Evictions))
	one("stint_flushes_total", "counter", "Flushes that wrote something.", float64(rep.Flush.Count))
	one("stint_flush_failures_total", "counter", "Flushes that failed.", float64(rep.Flush.Failures))
	one("stint_flushed_buckets_total", "counter", "Buckets written or deleted by flushes.", float64(rep.Flush.Buckets))
	one("stint_flush_last_seconds", "gauge", "How long the last flush took.", rep.Flush.Last)
	one("stint_flush_longest_seconds", "gauge", "How long the longest flush took.", rep.Flush.Longest)
	one("stint_commits_total", "counter", "Commits that decisions waited for.", float64(rep.Commit.Count))
	one("stint_commit_failures_total", "counter", "Commits that failed.", float64(rep.Commit.Failures))
	one("stint_committed_buckets_total", "counter", "Buckets written by commits.", float64(rep.Commit.Buckets))
	one("stint_commit_last_seconds", "gauge", "How long the last commit took.", rep.Commit.Last)
	one("stint_commit_longest_seconds", "gauge", "How long the longest commit took.", rep.Commit.Longest)
	if rep.hasFile {
		one("stint_file_bytes", "gauge", "Size of the file.", float64(rep.FileBytes))
	}
	metric("stint_clock_steps_total", "counter", "Steps of the wall clock.")
	fmt.Fprintf(&b, "stint_clock_steps_total{direction=\"forward\"} %d\n", rep.Forward)
	fmt.Fprintf(&b, "stint_clock_steps_total{direction=\"backward\"} %d\n", rep.Backward)
	io.WriteString(w, b.String()) // the client may have gone
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labelText returns the value of a label, in quotes.
func labelText(s string) string {
	return `"` + labelEscaper.Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}

package status

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// WritePrometheus writes the counters in Prometheus' text format, version 0.0.4.
// They have the names and the labels that otellimit's have in Prometheus. No label
// holds an id.
func (rep *Report) WritePrometheus(w io.Writer) error {
	var b bytes.Buffer
	family := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP stint_%s %s\n# TYPE stint_%[1]s %[3]s\n", name, help, kind)
	}
	one := func(name, kind, help string, value any) {
		family(name, kind, help)
		fmt.Fprintf(&b, "stint_%s %v\n", name, value)
	}
	each := func(name, kind, help string, value func(*LimitReport) int64) {
		family(name, kind, help)
		for i := range rep.Limits {
			l := &rep.Limits[i]
			fmt.Fprintf(&b, "stint_%s{stint_limit=%s} %d\n", name, labelText(l.Label), value(l))
		}
	}
	saves := func(name, plural string, s writeReport) {
		one(plural+"_total", "counter", "The "+plural+" that wrote something.", s.Count)
		one(name+"_failures_total", "counter", "Failed "+plural+".", s.Failures)
		one(name+"_buckets_total", "counter", "Buckets that "+plural+" wrote or deleted.", s.Buckets)
		one(name+"_duration_seconds", "gauge", "How long the last "+name+" took.", s.Last)
		one(name+"_longest_seconds", "gauge", "How long the longest "+name+" took.", s.Longest)
	}

	family("decisions_total", "counter", "Decisions of buckets to spend or to reserve, also for Shadow rules. Checks are none.")
	for _, l := range rep.Limits {
		label := labelText(l.Label)
		fmt.Fprintf(&b, "stint_decisions_total{stint_limit=%s,stint_decision=\"allowed\"} %d\n", label, l.Allowed)
		fmt.Fprintf(&b, "stint_decisions_total{stint_limit=%s,stint_decision=\"denied\"} %d\n", label, l.Denied)
	}
	rep.writeRequests(&b, family)
	each("errors_total", "counter", "Calls that returned an error.",
		func(l *LimitReport) int64 { return l.Errors })
	each("buckets_held", "gauge", "Buckets that are held, for example by a lock-out.",
		func(l *LimitReport) int64 { return l.Holds })
	each("requests_waiting", "gauge", "Requests that wait in queues.",
		func(l *LimitReport) int64 { return l.Waiting })
	each("requests_in_flight", "gauge", "Requests that have a place in flight.",
		func(l *LimitReport) int64 { return l.InFlight })
	family("build_info", "gauge", "Always 1; the labels have the versions.")
	fmt.Fprintf(&b, "stint_build_info{version=%s,goversion=%s} 1\n", labelText(rep.Version), labelText(rep.Go))
	healthy := 0
	if rep.Healthy {
		healthy = 1
	}
	one("healthy", "gauge", "1 if the limiter is healthy, else 0.", healthy)
	one("buckets_resident", "gauge", "Buckets in memory.", rep.Resident)
	one("buckets_dirty", "gauge", "Buckets in memory, changed since they were saved.", rep.Dirty)
	one("loads_total", "counter", "Reads of buckets that were not in memory.", rep.Loads)
	one("evictions_total", "counter", "Buckets removed from memory to make space.", rep.Evictions)
	saves("flush", "flushes", rep.Flush)
	saves("commit", "commits", rep.Commit)
	if rep.FileBytes != 0 {
		one("file_size_bytes", "gauge", "Size of the file.", rep.FileBytes)
		one("file_free_bytes", "gauge", "Part of the file in free pages.", rep.FileFree)
		one("journal_size_bytes", "gauge", "Part of the file in the journal.", rep.Journal)
		one("journal_buckets", "gauge", "Buckets whose newest state is in the journal.", rep.Journaled)
	}
	family("clock_steps_total", "counter", "Steps of the wall clock.")
	fmt.Fprintf(&b, "stint_clock_steps_total{stint_clock_direction=\"forward\"} %d\n", rep.Forward)
	fmt.Fprintf(&b, "stint_clock_steps_total{stint_clock_direction=\"backward\"} %d\n", rep.Backward)
	_, err := w.Write(b.Bytes())
	return err
}

// writeRequests writes what clients were told, if that is observed.
func (rep *Report) writeRequests(b *bytes.Buffer, family func(name, kind, help string)) {
	if !rep.observes {
		return
	}
	family("requests_total", "counter", "What rules told clients about their requests.")
	for _, l := range rep.Limits {
		for bits, n := range l.verdicts {
			if n == 0 && bits > isDenied {
				continue
			}
			labels := `stint_decision="allowed"`
			if bits&isDenied != 0 {
				labels = `stint_decision="denied"`
			}
			if bits&inShadow != 0 {
				labels += `,stint_shadow="true"`
			}
			if bits&noPlace != 0 {
				labels += `,stint_in_flight="true"`
			}
			fmt.Fprintf(b, "stint_requests_total{stint_limit=%s,%s} %d\n", labelText(l.Label), labels, n)
		}
	}
	fmt.Fprintf(b, "stint_requests_total{stint_decision=\"error\"} %d\n", rep.failed)
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labelText returns the value of a label, in quotes.
func labelText(s string) string {
	return `"` + labelEscaper.Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}

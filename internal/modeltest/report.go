package modeltest

import (
	"fmt"
	"strings"
)

func (w *World) failf(format string, args ...any) {
	w.tb.Helper()
	var lines strings.Builder
	for _, e := range w.calls[max(0, len(w.calls)-200):] {
		fmt.Fprintln(&lines, e)
	}
	w.tb.Fatalf("seed %d, step %d, %s, limits %s: %s\nthe last calls:\n%s", w.seed,
		w.Counts["steps"], w.action,
		describe(w.limits), fmt.Sprintf(format, args...), lines.String())
}

// entry is a call in the report of a failure.
type entry struct {
	call   Call
	reply  Reply
	action string
}

func (e entry) String() string {
	s := fmt.Sprintf("%d %s: %s", e.call.Now, e.action, e.call.Op)
	for i, q := range e.call.Reqs {
		s += fmt.Sprintf(" %d:%s cost %d mode %d", q.Key.Name, q.Key.ID, q.Cost, q.Mode)
		if i < len(e.reply.Decisions) {
			s += fmt.Sprintf(" %+v", e.reply.Decisions[i])
		}
	}
	return s + fmt.Sprintf(" place %d until %d: %q place %d delay %v", e.call.Place, e.call.Until,
		e.reply.Failure, e.reply.Place, e.reply.Delay)
}

func describe(ls Limits) (s string) {
	for name := range uint16(5) {
		if l := ls.Names[name]; l != nil && l.Blocked {
			s += fmt.Sprintf("[%d: blocked]", name)
		} else if l != nil {
			s += fmt.Sprintf("[%d: %d per %dns, level %d, queue %d]", name, l.Burst, l.T(), l.Level,
				l.Queue)
		}
	}
	for _, o := range ls.Overrides {
		if o.Limit.Blocked {
			s += fmt.Sprintf("[%d:%s: blocked]", o.Key.Name, o.Key.ID)
			continue
		}
		s += fmt.Sprintf("[%d:%s: %d per %dns, level %d, queue %d]", o.Key.Name, o.Key.ID, o.Limit.Burst,
			o.Limit.T(), o.Limit.Level, o.Limit.Queue)
	}
	return s
}

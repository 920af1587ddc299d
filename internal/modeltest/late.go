package modeltest

// commitLate spends from a group of buckets, and holds up the save for longer
// than the caller waits. Later calls wait for the next commit. Then the save
// continues, and may fail.
func (w *World) commitLate() {
	reqs, before, undo := w.pickRequests(), make(map[Key]Span), make(map[Key]Span)
	if len(reqs) == 0 {
		return
	}
	for _, q := range reqs {
		if q.Mode != CheckOnly {
			before[q.Key] = w.states[q.Key].TAT
		}
	}
	w.env.Disk.set(NoFault)
	_, release := w.env.Disk.Block()
	w.tb.Cleanup(release) // if the test fails, before the System is closed
	w.late = true
	if w.group(SpendAll, reqs) == NotDurable {
		undo = before // TATs in memory if the save fails
		w.Counts["late"]++
	}
	type waiting struct {
		key   Key
		op    Op
		cost  int64
		reply chan Reply
	}
	var calls []waiting
	for range w.rnd.IntN(4) {
		q := reqs[w.rnd.IntN(len(reqs))]
		l, on, _ := w.limits.For(q.Key)
		if !on {
			continue
		}
		c := waiting{q.Key, Spend, q.Cost, make(chan Reply, 1)}
		if w.rnd.IntN(2) == 0 {
			c.op, c.cost = Refund, l.Burst
		}
		go func() {
			c.reply <- w.sys.Do(Call{Op: c.op, Now: w.now, Reqs: []Request{{Key: c.key, Cost: c.cost}}})
		}()
		w.env.Settle()
		calls = append(calls, c)
	}
	w.env.Disk.set([]Fault{NoFault, FailBefore, FailAfter}[w.rnd.IntN(3)])
	release()
	w.env.Settle()
	for _, c := range calls {
		r := <-c.reply
		w.calls = append(w.calls, entry{Call{Op: c.op, Now: w.now, Reqs: []Request{{Key: c.key,
			Cost: c.cost}}}, r, w.action})
		if w.refused(c.key, c.op, c.cost, r.Failure) {
			continue
		}
		var d Decision
		if r.Failure == "" {
			d = r.Decisions[0]
		}
		was := w.states[c.key].TAT
		l, on, _ := w.limits.For(c.key)
		w.decided(c.key, l, on, c.op, c.cost, 0, d, r.Failure)
		if _, ok := undo[c.key]; r.Failure == NotDurable && !ok {
			undo[c.key] = was
		} else if d.Allowed && c.cost > 0 && (c.op == Spend || was.Lo > w.now) {
			delete(undo, c.key)
		}
	}
	w.late = false
	for _, q := range reqs {
		if tat, ok := undo[q.Key]; ok {
			w.unknown(q.Key, tat)
		}
		w.look(q.Key)
	}
}

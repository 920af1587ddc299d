package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/stint-go/stint/bench/turns"
)

// computeArg makes a process of this program compute until its parent ends it.
const computeArg = "compute"

// busy measures durable decisions beside processes that compute, as on a small
// machine that does other work as well.
func (b *bench) busy() error {
	callers := []int{1, 64}
	length, rounds := 5*time.Second, 5
	if b.quick {
		length = time.Second
	}
	const ids = 10_000
	w := sizeWorkload(ids * len(callers) * rounds)
	cfg := perHour
	cfg.Callers = callers[len(callers)-1]
	var ts []*table
	var errs []error
	for _, processes := range []int{0, 2, 4} {
		end, err := compute(processes)
		if err != nil {
			return errors.Join(err, joined(errs))
		}
		figures, failed := b.loads(busy, w, cfg, callers, length, rounds, ids)
		errs = append(append(errs, failed...), end())
		t := &table{
			title: fmt.Sprintf("Durable decisions per second beside %d computing processes, on %d processors",
				processes, runtime.NumCPU()),
			header: []string{"per second, by callers"},
		}
		for _, n := range callers {
			t.header = append(t.header, fmt.Sprint(n), "÷ "+writeAndSync.Name, "p99", "worst")
		}
		for _, c := range busy {
			if b.skipped[c.Name] != "" {
				continue
			}
			row := []string{c.Name}
			for _, n := range callers {
				f := figures[c.Name][n]
				worst := time.Duration(0)
				for _, r := range f {
					worst = max(worst, r.Latencies.Max)
				}
				row = append(row, count(f.perSecond()), ratio(f.times(figures[writeAndSync.Name][n]), 1),
					duration(f.latency(func(l Latencies) time.Duration { return l.P99 })), duration(worst))
			}
			t.add(row...)
		}
		ts = append(ts, t)
	}
	last := ts[len(ts)-1]
	last.notes = append([]string{"Each ratio is the median of the ratios of the rounds, in which the contestants take turns. " +
		"Worst is the longest decision of all rounds."}, b.notes(busy)...)
	errs = append(errs, b.report("busy", "Beside busy processes", ts))
	return joined(errs)
}

// compute starts processes that compute, until end.
func compute(processes int) (end func() error, err error) {
	var all []*exec.Cmd
	end = func() (err error) {
		for _, c := range all {
			err = errors.Join(err, c.Process.Kill())
			c.Wait() // its error is that it was killed
		}
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for range processes {
		c := exec.Command(exe, computeArg)
		c.SysProcAttr = turns.DieWithParent()
		if err := c.Start(); err != nil {
			return nil, errors.Join(err, end())
		}
		all = append(all, c)
	}
	return end, nil
}

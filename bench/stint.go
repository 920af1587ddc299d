package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/stint-go/stint"
)

var (
	stintMemory = Contestant{"stint memory", true, "GCRA in integer nanoseconds; durability memory, in a file",
		openStint(stint.Memory)}
	stintFlushed = Contestant{"stint flushed", true, "durability flushed, the default, in a file; flushed each second",
		openStint(stint.Flushed)}
	stintLeased = Contestant{"stint leased", true, "a crash may withhold one lease of a bucket, and forgets nothing",
		openStint(stint.Leased)}
	stintSynced = Contestant{"stint synced", true, "one commit, shared by all waiting callers", openStint(stint.Synced)}

	stintEach = Contestant{"stint DoEach of 64", true, "64 ids, a decision on each; durability memory",
		func(cfg Config) (Decider, error) {
			d, err := openStint(stint.Memory)(cfg)
			return &eachDecider{stintDecider: d.(*stintDecider)}, err
		}}
	stintAll = Contestant{"stint SpendAll of 3", true, "three ids, all or nothing: one decision; durability memory",
		func(cfg Config) (Decider, error) {
			d, err := openStint(stint.Memory)(cfg)
			return &allDecider{d.(*stintDecider)}, err
		}}
)

// The one limit that a benchmark has.
const perID stint.Name = 1

type stintDecider struct {
	*stint.Limiter
	level   stint.Durability
	callers int
}

func openStint(level stint.Durability) func(Config) (Decider, error) {
	return func(cfg Config) (Decider, error) {
		l, err := openLimiter(filepath.Join(cfg.Dir, "stint.db"), level, cfg)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("%w: %w", errSkip, err)
		}
		return &stintDecider{l, level, max(cfg.Callers, 1)}, err
	}
}

func openLimiter(path string, level stint.Durability, cfg Config) (*stint.Limiter, error) {
	limit := stint.Limit{Burst: cfg.Burst, Count: 1, Period: cfg.Interval, Durability: level}
	limits, err := stint.NewLimits(stint.Names{perID: {Label: "PerID", Limit: limit}})
	if err != nil {
		return nil, err
	}
	return stint.Open(path, limits, &stint.Options{
		MaxResident:   cmp.Or(cfg.Resident, cfg.IDs+cfg.IDs/4+1000),
		FlushInterval: cfg.Flush,
	})
}

func (d *stintDecider) Allow(id string) bool {
	decision, err := d.Spend(perID.Key(id), 1)
	must(err)
	return decision.Allowed
}

// Fill has many callers if each waits for the disk. It spends different parts of the
// leases, so that they end at different times. It spends enough that no bucket is full
// again before its turn comes.
func (d *stintDecider) Fill(w Workload) error {
	if d.level <= stint.Flushed {
		return w.fill(d, 1)
	}
	const idle = 600 // tokens: nine minutes
	err := w.fill(d, d.callers)
	if d.level == stint.Leased && err == nil {
		err = w.each(d.callers, func(i int, id string) error {
			_, err := d.Spend(perID.Key(id), idle+int64(i)%(perHour.Burst/8))
			return err
		})
	}
	return err
}

type eachDecider struct {
	*stintDecider
}

const each = 64

func (d *eachDecider) Group() (ids, decisions int) { return each, each }

func (d *eachDecider) AllowGroup(ids []string) (allowed int) {
	var reqs [each]stint.Request
	var ds [each]stint.Decision
	for i, id := range ids {
		reqs[i] = stint.Request{Key: perID.Key(id), Cost: 1}
	}
	must(d.DoEach(context.Background(), reqs[:len(ids)], ds[:]))
	for i := range ids {
		if ds[i].Allowed {
			allowed++
		}
	}
	return allowed
}

type allDecider struct{ *stintDecider }

func (d *allDecider) Group() (ids, decisions int) { return 3, 1 }

func (d *allDecider) AllowGroup(ids []string) int {
	var reqs [3]stint.Request
	for i, id := range ids {
		reqs[i] = stint.Request{Key: perID.Key(id), Cost: 1}
	}
	decision, err := d.SpendAll(reqs[:len(ids)]...)
	must(err)
	if decision.Allowed {
		return len(ids)
	}
	return 0
}

// flushDirty saves all dirty buckets, so that stint does not flush during the
// turn of another contestant. Leases stay: Flush would end them.
func flushDirty(d Decider) error {
	if s, ok := d.(*stintDecider); ok && s.level == stint.Flushed {
		return s.Flush()
	}
	return nil
}

func flushStats(d Decider) stint.SaveStats {
	if s, ok := d.(*stintDecider); ok {
		return s.Stats().Flush
	}
	return stint.SaveStats{}
}

package main

import (
	"context"
	"sync"
	"time"

	limiter "github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

// A limiter of golang.org/x/time/rate limits one thing, so programs write a map
// of them.

var (
	xtimeSyncMap = Contestant{"x/time in sync.Map", true, "golang.org/x/time/rate", func(cfg Config) (Decider, error) {
		return &syncMap{limit: rate.Every(cfg.Interval), burst: int(cfg.Burst)}, nil
	}}
	xtimeRWMutex = Contestant{"x/time in RWMutex map", true, "golang.org/x/time/rate", func(cfg Config) (Decider, error) {
		return &rwMutexMap{limit: rate.Every(cfg.Interval), burst: int(cfg.Burst), m: make(map[string]*rate.Limiter)}, nil
	}}
)

type syncMap struct {
	limit rate.Limit
	burst int
	m     sync.Map
}

func (d *syncMap) Allow(id string) bool {
	l, ok := d.m.Load(id)
	if !ok {
		l, _ = d.m.LoadOrStore(id, rate.NewLimiter(d.limit, d.burst))
	}
	return l.(*rate.Limiter).Allow()
}

func (d *syncMap) Close() error { return nil }

type rwMutexMap struct {
	limit rate.Limit
	burst int
	mu    sync.RWMutex
	m     map[string]*rate.Limiter
}

func (d *rwMutexMap) Allow(id string) bool {
	d.mu.RLock()
	l, ok := d.m[id]
	d.mu.RUnlock()
	if !ok {
		d.mu.Lock()
		if l, ok = d.m[id]; !ok {
			l = rate.NewLimiter(d.limit, d.burst)
			d.m[id] = l
		}
		d.mu.Unlock()
	}
	return l.Allow()
}

func (d *rwMutexMap) Close() error { return nil }

// The benchmark in go-limiter's repository takes from one key, "", and says that
// it takes from 100,000.
var goLimiter = Contestant{"sethvargo/go-limiter", false,
	"memorystore; fixed windows: up to twice the limit across the end of one",
	func(cfg Config) (Decider, error) {
		s, err := memorystore.New(&memorystore.Config{
			Tokens:      uint64(cfg.Burst),
			Interval:    time.Duration(cfg.Burst) * cfg.Interval,
			SweepMinTTL: 100 * 365 * 24 * time.Hour,
		})
		return goLimiterDecider{s}, err
	}}

type goLimiterDecider struct{ limiter.Store }

func (d goLimiterDecider) Allow(id string) bool {
	_, _, _, ok, err := d.Take(context.Background(), id)
	must(err)
	return ok
}

func (d goLimiterDecider) Close() error { return d.Store.Close(context.Background()) }

// With a bound, its store would forget exhausted keys, so it gets none. By
// default it returns an error after ten lost races, so it gets more attempts.
var throttledGCRA = Contestant{"throttled v2", true, "GCRA, memstore without a bound",
	func(cfg Config) (Decider, error) {
		store, err := memstore.NewCtx(0)
		if err != nil {
			return nil, err
		}
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
			MaxRate:  throttled.PerDuration(1, cfg.Interval),
			MaxBurst: int(cfg.Burst) - 1, // it admits one more
		})
		if err != nil {
			return nil, err
		}
		l.SetMaxCASAttemptsLimit(1000)
		return throttledDecider{l}, nil
	}}

type throttledDecider struct{ *throttled.GCRARateLimiterCtx }

func (d throttledDecider) Allow(id string) bool {
	limited, _, err := d.RateLimitCtx(context.Background(), id, 1)
	must(err)
	return !limited
}

func (d throttledDecider) Close() error { return nil }

var ululeMemory = Contestant{"ulule/limiter v3", false,
	"memory store; fixed windows: up to twice the limit across the end of one",
	func(cfg Config) (Decider, error) {
		return ululeDecider{ulule.New(ululememory.NewStore(), ulule.Rate{
			Limit: cfg.Burst, Period: time.Duration(cfg.Burst) * cfg.Interval,
		})}, nil
	}}

type ululeDecider struct{ *ulule.Limiter }

func (d ululeDecider) Allow(id string) bool {
	c, err := d.Get(context.Background(), id)
	must(err)
	return !c.Reached
}

func (d ululeDecider) Close() error { return nil }

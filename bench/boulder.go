package main

import (
	"context"
	"encoding/hex"
	"net/netip"
	"time"

	"github.com/jmhodges/clock"
	"github.com/letsencrypt/boulder/config"
	"github.com/letsencrypt/boulder/ratelimits"
	"github.com/prometheus/client_golang/prometheus"
)

// boulder has only its own limits, and ids of their kinds: here, IPv6
// addresses. A decision includes making the transaction and asking for its
// result, as in every program that uses it.
var boulderInmem = Contestant{"boulder ratelimits", false,
	"GCRA, in-memory source; reads, then adds: callers that race can overspend",
	func(cfg Config) (Decider, error) {
		clk := clock.New()
		l, err := ratelimits.NewLimiter(clk, ratelimits.NewInmemSource(), prometheus.NewRegistry())
		if err != nil {
			return nil, err
		}
		b, err := ratelimits.NewTransactionBuilder(ratelimits.LimitConfigs{
			ratelimits.LimitOverrideRequestsPerIPAddress.String(): {Burst: cfg.Burst, Count: 1,
				Period: config.Duration{Duration: cfg.Interval}},
		}, nil, prometheus.NewRegistry(), nil)
		return &boulderDecider{l, b}, err
	}}

type boulderDecider struct {
	limiter *ratelimits.Limiter
	builder *ratelimits.TransactionBuilder
}

func (d *boulderDecider) Allow(id string) bool {
	addr := [16]byte{0x20, 0x01, 0x0D, 0xB8}
	_, err := hex.Decode(addr[8:], []byte(id[8:])) // the last 8 bytes tell the ids apart
	must(err)
	txns, err := d.builder.LimitOverrideRequestsPerIPAddressTransaction(netip.AddrFrom16(addr))
	must(err)
	decision, err := d.limiter.Spend(context.Background(), txns)
	must(err)
	return decision.Result(time.Now()) == nil
}

func (d *boulderDecider) Close() error { return nil }

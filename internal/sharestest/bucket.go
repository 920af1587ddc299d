package sharestest

import (
	"math/big"

	"github.com/stint-go/stint"
)

// ratBucket is a token bucket in exact rationals.
type ratBucket struct {
	burst, interval int64
	level           big.Rat
	at              int64
}

func newRatBucket(l stint.Limit, now int64) *ratBucket {
	b := &ratBucket{burst: l.Burst, interval: int64(l.Interval()), at: now}
	b.level.SetInt64(l.Burst)
	return b
}

func (b *ratBucket) advance(now int64) {
	if now > b.at {
		var gain, full big.Rat
		b.level.Add(&b.level, gain.SetFrac64(now-b.at, b.interval))
		if full.SetInt64(b.burst); b.level.Cmp(&full) > 0 {
			b.level.Set(&full)
		}
		b.at = now
	}
}

func (b *ratBucket) has(tokens int64) bool {
	var want big.Rat
	return b.level.Cmp(want.SetInt64(tokens)) >= 0
}

func (b *ratBucket) take(tokens int64) {
	var cost big.Rat
	b.level.Sub(&b.level, cost.SetInt64(tokens))
}

// give returns tokens, up to the burst.
func (b *ratBucket) give(tokens int64) {
	b.take(-tokens)
	if b.has(b.burst) {
		b.level.SetInt64(b.burst)
	}
}

// giveLate returns tokens that were spent so many nanoseconds ago, less those
// that have come back since. It rounds down to a nanosecond of the bucket. If
// total is not nil, it leaves out those that have come back to the total.
func (b *ratBucket) giveLate(tokens, ago int64, total *ratBucket) {
	if total != nil {
		ahead := new(big.Int).Mul(big.NewInt(ago), big.NewInt(b.interval))
		ahead.Add(ahead, big.NewInt(total.interval-1)).Quo(ahead, big.NewInt(total.interval))
		ago = ahead.Int64()
	}
	back, come := new(big.Rat).SetInt64(tokens), new(big.Rat).SetFrac64(ago, b.interval)
	if back.Sub(back, come); back.Sign() > 0 {
		b.level.Add(&b.level, back)
		b.give(0)
	}
}

// until returns the nanoseconds until the bucket has so many tokens; never is
// larger than all others.
func (b *ratBucket) until(tokens int64) int64 {
	if tokens > b.burst {
		return never
	}
	var lack, up big.Rat
	lack.Sub(lack.SetInt64(tokens), &b.level)
	if lack.Sign() <= 0 {
		return 0
	}
	lack.Mul(&lack, up.SetInt64(b.interval))
	q, rest := new(big.Int).QuoRem(lack.Num(), lack.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

const never = 1<<63 - 1

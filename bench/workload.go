package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A Workload says which ids ask, and how often. It is the same for every
// contestant.
type Workload struct {
	Name string
	IDs  int     // number of ids, all seen before the measurement begins
	Zipf float64 // exponent of their frequencies; 0: all alike
}

var workloads = []Workload{
	{"hot", 1, 0},
	{"1k", 1_000, 0},
	{"100k", 100_000, 0},
	{"1M", 1_000_000, 0},
	{"10M", 10_000_000, 0},
	{"zipf 1M", 1_000_000, 1.1},
}

// Limit returns a limit that admits every request of a measurement, or, if denied, only
// the first of each id. Tokens return so slowly that no bucket becomes full during it.
// An empty bucket refills within the hundred years that stint allows.
func (w Workload) Limit(denied bool) (burst int64, interval time.Duration) {
	const century = 95 * 365 * 24 * time.Hour
	switch {
	case denied:
		burst = 1
	case w.IDs < 100:
		burst = 1e9
	case w.IDs < 100_000 || w.Zipf != 0:
		burst = 1e8
	default:
		burst = 5e5
	}
	return burst, min(century/time.Duration(burst), 240*time.Hour)
}

const idLen = 24

// appendID appends the id with a number: 24 hexadecimal digits. Ids differ in
// all their parts, so a limiter gains nothing if it compares only a part. The
// last eight digits are the number times an odd constant, so no two ids share
// them.
func appendID(b []byte, i uint32) []byte {
	var raw [idLen / 2]byte
	hi, lo := bits.Mul64(uint64(i)+0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
	binary.LittleEndian.PutUint64(raw[:], hi^lo)
	binary.LittleEndian.PutUint32(raw[8:], i*0x9E3779B1)
	return hex.AppendEncode(b, raw[:])
}

// id returns the id with a number as a string of its own, which the callee may keep.
func id(i uint32) string { return string(appendID(make([]byte, 0, idLen), i)) }

// A stream is one caller's endless sequence of requests.
type stream struct {
	w     Workload
	rng   *rand.Rand
	zipf  *rand.Zipf
	sweep *sweep // nil: at random
	group int    // requests in a row with different ids

	buf  []byte
	ids  []string // the requests; they share buf, and are valid until the next call
	seen []uint64 // a bit for each number drawn
}

func newStream(w Workload, seed uint64, group int) *stream {
	s := &stream{w: w, rng: rand.New(rand.NewPCG(seed, 1)), group: max(group, 1), seen: make([]uint64, w.IDs/64+1)}
	if w.Zipf != 0 {
		s.zipf = rand.NewZipf(s.rng, w.Zipf, 1, uint64(w.IDs-1))
	}
	return s
}

// A sweep goes through some of the ids in turn, again and again. The streams
// that share it take the next id in turn.
type sweep struct {
	w           Workload
	first, span uint64
	turn        atomic.Uint64
}

func (sw *sweep) stream() *stream {
	s := newStream(sw.w, 0, 1)
	s.sweep = sw
	return s
}

func sweepAll(w Workload) *sweep { return &sweep{w: w, span: uint64(w.IDs)} }

// draw returns the number of the next id. Only a sweep uses turn.
func (s *stream) draw(turn uint64) (i uint32) {
	switch {
	case s.sweep != nil:
		i = uint32(s.sweep.first + turn%s.sweep.span)
	case s.zipf != nil:
		i = uint32(s.zipf.Uint64())
	default:
		i = s.rng.Uint32N(uint32(s.w.IDs))
	}
	s.seen[i/64] |= 1 << (i % 64)
	return i
}

// next returns n requests. They lie side by side, as in the buffers that requests are read into.
func (s *stream) next(n int) []string {
	if cap(s.buf) < n*idLen {
		s.buf, s.ids = make([]byte, 0, n*idLen), make([]string, 0, n)
	}
	s.buf, s.ids = s.buf[:0], s.ids[:0]
	var first uint64
	if s.sweep != nil {
		first = s.sweep.turn.Add(uint64(n)) - uint64(n)
	}
	for k := range n {
		i := s.draw(first + uint64(k))
		for ok := s.w.IDs < s.group; !ok; { // a group is of different ids
			ok = true
			for _, other := range s.ids[k-k%s.group:] {
				var b [idLen]byte
				if other == string(appendID(b[:0], i)) {
					i, ok = s.draw(0), false
					break
				}
			}
		}
		s.buf = appendID(s.buf, i)
		s.ids = append(s.ids, unsafe.String(&s.buf[k*idLen], idLen))
	}
	return s.ids
}

// distinct returns how many different ids the streams have asked for.
func distinct(streams []*stream) (n int) {
	for i := range streams[0].seen {
		var word uint64
		for _, s := range streams {
			word |= s.seen[i]
		}
		n += bits.OnesCount64(word)
	}
	return n
}

// checkDistinct returns an error if so many draws should have met more, or
// fewer, different ids than they have.
func (w Workload) checkDistinct(draws, met int) error {
	n := float64(w.IDs)
	if w.Zipf != 0 {
		n = min(n, 1e4) // nearly all draws are of these ranks
	}
	want := n * -math.Expm1(-float64(draws)/n)
	if slack := 0.05*want + 2*math.Sqrt(want); float64(met) < want/2-slack || w.Zipf == 0 &&
		math.Abs(float64(met)-want) > slack {
		return fmt.Errorf("%s: %d draws met %d different ids, want about %.0f", w.Name, draws, met, want)
	}
	return nil
}

// fill asks for every id once, in no order that a table could gain from, with this many
// callers.
func (w Workload) fill(d Decider, callers int) error {
	return w.each(callers, func(i int, id string) error {
		if !d.Allow(id) {
			return fmt.Errorf("fill: the first request of %s, number %d of %d, was denied", id, i, w.IDs)
		}
		return nil
	})
}

// each calls f for every id, in so many goroutines.
func (w Workload) each(callers int, f func(i int, id string) error) error {
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < w.IDs && errs[c] == nil; i += callers {
				errs[c] = f(i, id(uint32(i)))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

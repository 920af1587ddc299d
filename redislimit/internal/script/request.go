package script

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// Op is an operation of the script.
type Op string

// The operations.
const (
	Spend  Op = "s"
	Check  Op = "c"
	Refund Op = "r"
	Undo   Op = "u" // a refund, less what time has brought back since Fourth
	Reset  Op = "t"
	Hold   Op = "h"
	Extend Op = "e" // a hold that never ends earlier than the one before
	Part   Op = "p" // takes whole tokens that the bucket has, up to Need
)

// Request is one bucket's part in a call, and the answer to it. Times are in
// nanoseconds, instants in Unix nanoseconds.
type Request struct {
	Bucket   stint.Key
	Since    *Since      // of the limits that it was made with
	Limit    stint.Limit // that decides
	Given    stint.Limit // zero if the configured one decides
	Mode     stint.Mode
	Cost     int64
	Leave    int64     // tokens that must remain
	Spent    time.Time // of a refund: the instant of the spend, if it is known
	Interval int64     // T
	Asks     bool      // the server or a lease decides, not the limit alone
	Leased   bool      // a lease may decide

	Key       string // of the bucket at the server
	Op        Op     // "": that of the trip
	Need      int64  // the time that the cost takes to come back
	Tolerance int64  // τ, without the time that tokens to leave take to come back
	Left      int64  // that time
	Fourth    int64  // argument of the operation, as script.lua says

	Answer
	Taken int64           // tokens of a Part, from a lease and from the bucket
	Away  *stint.Decision // of Options.Away, which decided in place of the server; or nil
}

// Answer is what the server says of one bucket.
type Answer struct {
	Now  int64 // the server's time
	TAT  int64
	Wait int64 // until the request could be carried out
	Hold int64 // end of the hold, or 0
}

// Limited reports whether the limit has a bucket to ask about.
func (r *Request) Limited() bool { return r.Limit != stint.Unlimited && r.Limit != stint.Blocked }

// Decision returns what the answer means.
func (r *Request) Decision(op Op) stint.Decision {
	if r.Away != nil {
		return *r.Away
	}
	d := stint.Decision{Key: r.Bucket, Allowed: true, Limit: r.Limit}
	d.SetAt(time.Unix(0, r.Now))
	if op != Refund {
		d.Allowed, d.RetryAfter = r.Wait == 0, time.Duration(r.Wait)
	}
	switch {
	case r.Limit == stint.Unlimited:
		d.Remaining = math.MaxInt64
	case r.Limit == stint.Blocked:
		if op != Refund {
			d.Allowed, d.RetryAfter, d.ResetAfter = false, math.MaxInt64, math.MaxInt64
		}
	default:
		reset := max(0, r.TAT-r.Now)
		d.ResetAfter = time.Duration(reset)
		d.Remaining = max(0, r.Tolerance+r.Left-reset) / r.Interval
	}
	switch {
	case op == Part:
		if d.Taken = r.Taken; d.Taken > 0 {
			d.Allowed, d.RetryAfter = true, 0
		}
	case d.Allowed && op == Spend && r.Mode != stint.CheckOnly:
		d.Taken = r.Cost
	}
	return d
}

// Room returns in how many nanoseconds the bucket may be full at most if the request
// is to pass. One that costs nothing and leaves nothing passes, however small the
// limit is.
func (r *Request) Room() int64 {
	if r.Need == 0 && r.Left == 0 {
		return MaxTolerance
	}
	return r.Tolerance - r.Need
}

// Record returns what the script gets for a request. If more, the group goes on with the
// next request.
func (r *Request) Record(op Op, more bool) string {
	follows := byte('-')
	if more {
		follows = '+'
	}
	b := append(make([]byte, 0, 3+6*8), cmp.Or(r.Op, op)[0], '0'+byte(r.Mode), follows)
	tolerance := r.Tolerance
	if op := cmp.Or(r.Op, op); op == Spend || op == Check {
		tolerance = r.Need + r.Room()
	}
	for _, v := range [3]int64{r.Need, tolerance, r.Fourth} {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(v/1e9)))
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(v%1e9)))
	}
	return string(b)
}

// Parse puts the script's reply into the trips, and returns the server's time. A trip
// may have an error of its own.
func Parse(batch []*Trip, reply any) (now int64, err error) {
	text, _ := reply.(string)
	r := numbers{text: text}
	now = r.instant()
	for _, t := range batch {
		switch word := r.word(); word {
		case "0", "1":
			t.Allowed = word == "1"
			for _, a := range t.Requests {
				a.Answer = Answer{now, r.instant(), r.instant(), r.instant()}
			}
		default:
			t.Err = wrongKey(word, func(i int) string { return t.Requests[i].Key }, len(t.Requests))
			r.wrong = r.wrong || t.Err == nil
		}
	}
	if r.wrong || r.text != "" {
		return 0, fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(fmt.Sprintf("script replied %.100q", text)))
	}
	for _, t := range batch {
		if t.Op == Part && t.Err == nil { // it says what it took instead of the time to wait
			a := t.Requests[0]
			a.Taken += a.Wait / a.Interval
			room := a.Tolerance
			switch {
			case a.Need == 0:
				room = a.Room()
			case a.Taken == 0: // it waits for the first token
				room -= a.Interval
			}
			a.Wait = max(0, a.Hold-now, a.TAT-now-room)
		}
	}
	return now, nil
}

// numbers reads the words of a reply.
type numbers struct {
	text  string
	wrong bool
}

func (r *numbers) word() (word string) {
	word, r.text, _ = strings.Cut(r.text, " ")
	return word
}

// instant reads seconds and nanoseconds.
func (r *numbers) instant() int64 {
	s, err1 := strconv.ParseInt(r.word(), 10, 64)
	n, err2 := strconv.ParseInt(r.word(), 10, 64)
	r.wrong = r.wrong || err1 != nil || err2 != nil
	return s*1e9 + n
}

package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// LeaseRequest is one bucket's part in a call of the lease script.
type LeaseRequest struct {
	Bucket stint.Key
	Limit  stint.Limit
	Since  *Since // of the limits that the bucket was last asked for with

	Key  string    // of the bucket at the server
	Args [12]int64 // as lease.lua says
	LeaseAnswer
}

// LeaseAnswer is the lease script's answer for one bucket.
type LeaseAnswer struct {
	Answer
	Granted int64 // nanoseconds
}

// Lease runs the lease script, with the limits that the first request has. After ErrAway
// or ErrNothingRan the script wrote nothing.
func (s *Server) Lease(rs []*LeaseRequest, gate Gate) (err error) {
	if gate.Away() {
		return ErrNotYet
	}
	defer func() {
		s.Note(err)
		gate.Ended(err)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	keys, args := make([]string, 0, len(rs)), make([]string, 2, 2+12*len(rs))
	for _, r := range rs {
		keys = append(keys, r.Key)
		for _, v := range r.Args {
			args = append(args, strconv.FormatInt(v, 10))
		}
	}
	sent := time.Now()
	reply, _, err := s.run(ctx, Leasing, rs[0].Since, keys, args, 0)
	if err != nil {
		replied, _ := errors.AsType[ServerError](err)
		if word, ours := strings.CutPrefix(string(replied), "STINT KEY "); ours {
			err = cmp.Or(wrongKey(word, func(i int) string { return keys[i] }, len(keys)), err)
		}
		return err
	}
	if err = ParseLeases(rs, reply); err == nil {
		s.sawTime(rs[0].Now, sent)
	}
	return err
}

// ParseLeases puts the script's reply into the requests.
func ParseLeases(rs []*LeaseRequest, reply any) error {
	all, _ := reply.([]any)
	if len(all) != 1+4*len(rs) {
		return fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(fmt.Sprintf("%d values for %d buckets", len(all), len(rs))))
	}
	var wrong error
	number := func(i int) int64 {
		s, _ := all[i].(string)
		if s == "" {
			return 0 // no hold
		}
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			wrong = fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(err.Error()))
		}
		return v
	}
	for i, r := range rs {
		r.Granted = number(1 + 4*i)
		r.Answer = Answer{number(0), number(2 + 4*i), number(3 + 4*i), number(4 + 4*i)}
	}
	return wrong
}

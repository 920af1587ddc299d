package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// LeaseRequest is one bucket's part in a call of the lease script.
type LeaseRequest struct {
	Key  string
	Args [12]int64 // as lease.lua says
}

// LeaseAnswer is the lease script's answer for one bucket. Times are in
// nanoseconds, instants in Unix nanoseconds.
type LeaseAnswer struct {
	Now     int64 // the server's time
	Granted int64
	TAT     int64
	Wait    int64
	Hold    int64
}

// Lease runs the lease script. After ErrAway or ErrNothingRan the script wrote
// nothing.
func (s *Server) Lease(rs []LeaseRequest, since *Since, gate Gate) ([]LeaseAnswer, error) {
	if gate.Away() {
		return nil, notYet()
	}
	answers, err := s.tryLease(rs, since)
	s.Note(err)
	gate.Ended(err)
	return answers, err
}

func (s *Server) tryLease(rs []LeaseRequest, since *Since) ([]LeaseAnswer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	generation, err := s.Load(ctx, since)
	if err != nil {
		return nil, err
	}
	args := append(make([]string, 0, 2+12*len(rs)), "", generation)
	if s.Now != nil {
		args[0] = strconv.FormatInt(Instant(s.Now()), 10)
	}
	var keys []string
	for i := range rs {
		keys = append(keys, rs[i].Key)
		for _, v := range rs[i].Args {
			args = append(args, strconv.FormatInt(v, 10))
		}
	}
	s.Trips.Add(1)
	sent := time.Now()
	reply, _, err := s.Eval(ctx, Leasing, keys, args, false)
	if err != nil {
		replied, _ := errors.AsType[ServerError](err)
		if word, ours := strings.CutPrefix(string(replied), "STINT KEY "); ours {
			err = cmp.Or(wrongKey(word, func(i int) string { return keys[i] }, len(keys)), err)
		}
		return nil, err
	}
	answers, err := ParseLeases(reply, len(rs))
	if err == nil {
		s.sawTime(answers[0].Now, sent)
	}
	return answers, err
}

// ParseLeases reads the reply to n requests.
func ParseLeases(reply any, n int) ([]LeaseAnswer, error) {
	all, _ := reply.([]any)
	if len(all) != 1+4*n {
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(fmt.Sprintf("%d values for %d buckets", len(all), n)))
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
	answers := make([]LeaseAnswer, n)
	for i := range answers {
		answers[i] = LeaseAnswer{number(0), number(1 + 4*i), number(2 + 4*i), number(3 + 4*i), number(4 + 4*i)}
	}
	return answers, wrong
}

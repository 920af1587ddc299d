package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

const (
	// MaxTolerance is the longest tolerance of a limit: 100 years.
	MaxTolerance = 36525 * 24 * 60 * 60 * 1e9

	// EndOfTime is the last instant of the arithmetic, so that now + τ is an int64.
	EndOfTime = math.MaxInt64 - int64(MaxTolerance)
)

// Instant returns a time in Unix nanoseconds, within the range of the
// arithmetic.
func Instant(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return 0
	case s > EndOfTime/1e9:
		return EndOfTime
	}
	return min(t.UnixNano(), EndOfTime)
}

// Config are the settings of a Server.
type Config struct {
	Timeout  time.Duration    // of a call
	Replicas int              // that must have what a synced trip wrote
	Plain    bool             // values without generations
	Now      func() time.Time // nil: the server's time
	Note     func(error)      // learns how each call ended
	Closed   func() bool      // no more is to be asked
}

// Server makes calls of the scripts at a server or a cluster. Its methods may be
// called from any number of goroutines.
type Server struct {
	client guarded
	Config
	mode  atomic.Int32
	ahead atomic.Int64 // server's time minus that of this machine; 0 if it is not known

	mu    sync.Mutex
	lanes map[laneOf]*lane // those in use

	// Pace is the least time after which another call begins although two are under
	// way, and too few callers for a call wait.
	Pace time.Duration

	Trips atomic.Int64 // calls of a script
}

// NewServer returns a Server that uses the client, and never closes it.
func NewServer(client Client, c Config) *Server {
	return &Server{client: guarded{client}, Config: c, Pace: 2 * time.Millisecond, lanes: make(map[laneOf]*lane)}
}

// CanSync reports whether trips may be synced.
func (s *Server) CanSync() error {
	_, err := s.client.syncs()
	return err
}

// Time returns the server's time, as far as this machine knows it from its
// calls. It may be late, but not ahead.
func (s *Server) Time() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now().Add(time.Duration(s.ahead.Load()))
}

// sawTime learns the server's time from a call that was sent at the instant. The
// server read its clock at some moment since then, and this process may have been
// stopped before that moment or after it. What is known stays if it agrees.
func (s *Server) sawTime(now int64, sent time.Time) {
	if s.Now != nil {
		return
	}
	least, most := bounds(now, sent)
	for {
		known := s.ahead.Load()
		ahead := max(known, least)
		if known == 0 || known > most { // the server's clock was set back
			ahead = least
		}
		if s.ahead.CompareAndSwap(known, ahead) {
			return
		}
	}
}

// bounds returns how far a clock that showed now, at some moment since sent, is
// ahead of this machine's.
func bounds(now int64, sent time.Time) (least, most int64) {
	received := time.Now()
	least = now - received.UnixNano()
	return least, least + int64(received.Sub(sent))
}

// Load sets the Since to the server's present time, if it is not known yet, and returns
// it as the scripts have it.
func (s *Server) Load(ctx context.Context, n *Since) (string, error) {
	if s.Plain {
		return "", nil
	}
	if n.Int64.Load() == 0 && s.Now != nil {
		n.CompareAndSwap(0, max(1, Instant(s.Now())/1000))
	} else if n.Int64.Load() == 0 {
		reply, err := s.client.do(ctx, "TIME")
		micros, ok := timeOf(reply)
		if err == nil && !ok {
			err = fmt.Errorf("redislimit: server replied %v to TIME", reply)
		}
		if err != nil {
			if err = Explain(err); errors.Is(err, ErrNoAnswer) { // TIME spends nothing
				err = fmt.Errorf("%w: no answer in time", ErrAway)
			}
			return "", err
		}
		n.CompareAndSwap(0, max(1, micros))
	}
	return strconv.FormatInt(n.Int64.Load(), 10), nil
}

// timeOf reads a reply to TIME.
func timeOf(reply any) (micros int64, ok bool) {
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return 0, false
	}
	s, _ := parts[0].(string)
	us, _ := parts[1].(string)
	seconds, err1 := strconv.ParseInt(s, 10, 64)
	rest, err2 := strconv.ParseInt(us, 10, 64)
	return seconds*1e6 + rest, err1 == nil && err2 == nil
}

// each runs a command at every node. If the Client asks any one of a cluster, and that does
// not answer, each asks again, because the next one may be another.
func (s *Server) each(args ...string) (replies []any, err error) {
	tries := 1
	if _, all := s.client.client.(ClusterClient); !all && s.IsCluster() {
		tries = 3
	}
	for i := range tries {
		if i > 0 && (!IsAway(err) || s.Closed()) {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
		replies, err = s.client.each(ctx, args...)
		if cancel(); err == nil {
			return replies, nil
		}
		err = Explain(err)
	}
	return nil, err
}

// ClockAhead returns the time of the node whose clock differs most from this
// machine's, less this machine's. Until the first call it is also how Time
// knows the server's time.
func (s *Server) ClockAhead() (ahead time.Duration, err error) {
	if s.Now != nil {
		return 0, nil
	}
	sent := time.Now()
	replies, err := s.each("TIME")
	for _, reply := range replies {
		if micros, ok := timeOf(reply); ok {
			least, most := bounds(1000*micros, sent)
			s.ahead.CompareAndSwap(0, least)
			if d := time.Duration(min(max(0, least), most)); d.Abs() > ahead.Abs() {
				ahead = d
			}
		}
	}
	return ahead, err
}

// Call asks the server about all trips of the batch. It makes one call, although
// a Gate may be away. After an error their answers mean nothing.
func (s *Server) Call(ctx context.Context, batch []*Trip) error {
	keys, args := make([]string, 0, len(batch)), make([]string, 2, 2+len(batch)) // run sets the first two
	for _, t := range batch {
		for i, r := range t.Requests {
			keys = append(keys, r.Key)
			args = append(args, r.Record(t.Op, i < len(t.Requests)-1))
		}
	}
	replicas := 0
	if batch[0].Synced {
		replicas = s.Replicas
	}
	sent := time.Now()
	reply, acknowledged, err := s.run(ctx, Decisions, batch[0].Requests[0].Since, keys, args, replicas)
	if err != nil {
		return err
	}
	now, err := Parse(batch, reply)
	if err != nil {
		return err
	}
	s.sawTime(now, sent)
	if acknowledged < replicas {
		for _, t := range batch {
			if t.Allowed {
				t.Err = cmp.Or(t.Err, fmt.Errorf("%w: too few replicas have it: %d of %d", stint.ErrNotDurable, acknowledged,
					replicas))
			}
		}
	}
	return nil
}

// run counts a trip, and runs a script with the time and the generation of the limits as
// its first two arguments.
func (s *Server) run(ctx context.Context, script Script, since *Since, keys, args []string, replicas int) (reply any,
	acknowledged int, err error) {
	if args[1], err = s.Load(ctx, since); err != nil {
		return nil, 0, err
	}
	if s.Now != nil {
		args[0] = strconv.FormatInt(Instant(s.Now()), 10)
	}
	s.Trips.Add(1)
	return s.Eval(ctx, script, keys, args, replicas)
}

// Eval runs a script, and waits for replicas if there must be any. If the server does
// not know the script, nothing ran, and Eval sends its text. It learns from an error
// that the server is a cluster.
func (s *Server) Eval(ctx context.Context, script Script, keys, args []string, replicas int) (reply any,
	acknowledged int, err error) {
	reply, acknowledged, err = s.client.eval(ctx, "EVALSHA", script.SHA, keys, args, replicas)
	var replied ServerError
	if errors.As(err, &replied) && strings.HasPrefix(string(replied), "NOSCRIPT") {
		reply, acknowledged, err = s.client.eval(ctx, "EVAL", script.Text, keys, args, replicas)
	}
	if err != nil {
		if err = Explain(err); errors.Is(err, ErrCrossSlot) {
			s.SetCluster(true)
		}
	}
	return reply, acknowledged, err
}

// Deadline returns when a trip that has begun must end.
func (s *Server) Deadline(t *Trip) time.Time { return t.Begun.Add(s.timeout(t.Synced)) }

// timeout returns how long a trip may take. The replicas get as much time as the
// server.
func (s *Server) timeout(synced bool) time.Duration {
	if synced {
		return 2 * s.Timeout
	}
	return s.Timeout
}

// ProbeText is a script that writes a key, as decisions do, because a server that
// cannot write may still answer other commands.
const ProbeText = "return redis.call('SET', KEYS[1], '', 'PX', '1')"

// Probe returns why the server of a key is away, or nil if it is back. If the
// server replies with an error that does not begin as one of awayReplies, it is
// back, and calls get the same error.
func (s *Server) Probe(key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	_, _, err := s.client.eval(ctx, "EVAL", ProbeText, []string{key}, nil, 0)
	if err == nil {
		return nil
	}
	if err = Explain(err); IsAway(err) {
		return err
	}
	return nil
}

// TryScripts returns an error if this user may not run the scripts. It reads and
// changes no bucket. A server that does not know the scripts takes two round trips.
func (s *Server) TryScripts(key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.Timeout)
	defer cancel()
	r := Request{Key: key, Mode: stint.CheckOnly, Tolerance: 1}
	args := []string{strconv.FormatInt(EndOfTime, 10), "", r.Record(Check, false)}
	_, _, err := s.Eval(ctx, Decisions, []string{key}, args, 0)
	return err
}

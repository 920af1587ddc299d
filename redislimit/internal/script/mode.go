package script

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
)

// What is known about the server.
const (
	unknown int32 = iota // it has not been asked, or does not say
	single
	cluster
)

// Spreads reports whether keys must be asked for slot by slot: always, unless
// the server is known to be a single one.
func (s *Server) Spreads() bool { return s.mode.Load() != single }

// IsCluster reports whether the server is known to be a cluster.
func (s *Server) IsCluster() bool { return s.mode.Load() == cluster }

// SetCluster says what the server is.
func (s *Server) SetCluster(is bool) {
	if s.mode.Store(single); is {
		s.mode.Store(cluster)
	}
}

// Info returns the settings of all nodes that answer, and learns from them
// whether the server is a cluster.
func (s *Server) Info() (nodes []map[string]string, err error) {
	replies, err := s.each("INFO")
	if err != nil {
		return nil, err
	}
	mode := unknown
	for _, reply := range replies {
		text, _ := reply.(string)
		fields := infoFields(text)
		switch {
		case fields["cluster_enabled"] == "1" || fields["redis_mode"] == "cluster":
			mode = cluster
		case mode == unknown && (fields["cluster_enabled"] == "0" || fields["redis_mode"] == "standalone"):
			mode = single
		}
		nodes = append(nodes, fields)
	}
	if s.client.isCluster() {
		mode = cluster
	}
	if mode != unknown && s.mode.Load() != cluster {
		s.mode.Store(mode)
	}
	return nodes, nil
}

func infoFields(info string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// Shards returns the id of each slot's primary. A slot without one has "".
func (s *Server) Shards() (*[16384]string, error) {
	replies, err := s.each("CLUSTER", "SLOTS")
	for _, reply := range replies {
		if ids := primaries(reply); ids != nil {
			return ids, nil
		}
	}
	return nil, cmp.Or(err, errors.New("redislimit: no node has slots of the cluster"))
}

// primaries reads a reply to CLUSTER SLOTS. It returns nil if it is none.
func primaries(reply any) *[16384]string {
	ranges, _ := reply.([]any)
	ids := new([16384]string)
	for _, v := range ranges {
		part, _ := v.([]any)
		if len(part) < 3 {
			return nil
		}
		from, ok1 := part[0].(int64)
		to, ok2 := part[1].(int64)
		primary, ok3 := part[2].([]any)
		if !ok1 || !ok2 || !ok3 || len(primary) < 2 || from < 0 || to >= int64(len(ids)) {
			return nil
		}
		id, _ := primary[len(primary)-1].(string)
		if len(primary) > 2 {
			id, _ = primary[2].(string)
		}
		for slot := from; slot <= to; slot++ {
			ids[slot] = id
		}
	}
	if len(ranges) == 0 {
		return nil
	}
	return ids
}

// Calls is the one place that decides how items with keys are put into calls: MaxTogether
// in each at most, and only keys of one slot, unless the server is a single one.
func Calls[T any](s *Server, items []T, key func(T) string) (all [][]T) {
	if len(items) == 1 {
		return [][]T{items}
	}
	open := make(map[uint16]int) // slot → its last call
	spreads := s.Spreads()
	for _, item := range items {
		slot := uint16(0)
		if spreads {
			slot = Slot(key(item))
		}
		at, ok := open[slot]
		if !ok || len(all[at]) == MaxTogether {
			at = len(all)
			open[slot] = at
			all = append(all, nil)
		}
		all[at] = append(all[at], item)
	}
	return all
}

// Each makes the calls that items with keys take, at most 16 at the same time, and
// returns the first error. After an error it makes no further calls.
func Each[T any](s *Server, items []T, key func(T) string, call func([]T) error) error {
	var group sync.WaitGroup
	ctx, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	slots := make(chan struct{}, 16)
	for _, batch := range Calls(s, items, key) {
		if slots <- struct{}{}; ctx.Err() != nil {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			if err := call(batch); err != nil {
				fail(err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

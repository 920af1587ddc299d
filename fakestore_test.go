package stint

import (
	"cmp"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"time"
)

var errDisk = errors.New("the disk is on fire")

// fakeStore is a Store that calls a hook at each operation. The hook may fail
// the operation, and saves can be held up.
type fakeStore struct {
	Store
	health error
	most   int // buckets of a save; 0 means no limit

	mu    sync.Mutex
	hook  func(op storeOp) error
	gate  chan error // verdicts on saves: nil carries one out
	saves int
	last  []Change
}

// storeOp is an operation of a fakeStore. Its hook is called before it is
// carried out, and again when it is done.
type storeOp struct {
	name string // "load", "save", "all", "declare", "maintain", "snapshot" or "close"
	key  Key    // of a load
	done bool
}

// on sets the hook.
func (s *fakeStore) on(hook func(op storeOp) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// fail makes the named operations return err, or loads, saves and listings if
// none is named. A nil err ends that.
func (s *fakeStore) fail(err error, ops ...string) {
	if ops == nil {
		ops = []string{"load", "save", "all"}
	}
	s.on(func(op storeOp) error {
		if op.done || !slices.Contains(ops, op.name) {
			return nil
		}
		return err
	})
}

// shut holds up saves until open, or until a verdict comes through the gate:
// an error keeps a save from being carried out.
func (s *fakeStore) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan error)
}

// open lets the save pass that waits, and all later ones.
func (s *fakeStore) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
}

// count returns how many saves there were.
func (s *fakeStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saves
}

// latest returns what the last save was given.
func (s *fakeStore) latest() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *fakeStore) do(op storeOp, carryOut func() error) error {
	s.mu.Lock()
	hook := s.hook
	s.mu.Unlock()
	if hook == nil {
		return carryOut()
	}
	if err := hook(op); err != nil {
		return err
	}
	if err := carryOut(); err != nil {
		return err
	}
	op.done = true
	return hook(op)
}

func (s *fakeStore) Room() int { return cmp.Or(s.most, maxSave) }

func (s *fakeStore) Save(changes []Change) error {
	if len(changes) == 0 { // not counted: rig.rest makes an empty commit
		return nil
	}
	s.mu.Lock()
	s.saves++
	s.last = slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Key == Key{} })
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		if err := <-gate; err != nil {
			return err
		}
	}
	defer slices.Reverse(changes) // a Store may reorder them
	return s.do(storeOp{name: "save"}, func() error { return s.Store.Save(changes) })
}

func (s *fakeStore) Load(key Key) (tat int64, err error) {
	err = s.do(storeOp{name: "load", key: key}, func() (err error) {
		tat, err = s.Store.Load(key)
		return err
	})
	if err != nil {
		return 0, err
	}
	return tat, nil
}

func (s *fakeStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		enough := false
		err := s.do(storeOp{name: "all"}, func() error {
			for c, err := range s.Store.All(name) {
				if err != nil {
					return err
				}
				if enough = !yield(c, nil); enough {
					break
				}
			}
			return nil
		})
		if err != nil && !enough {
			yield(Change{}, err)
		}
	}
}

func (s *fakeStore) Declare(names Names) error {
	return s.do(storeOp{name: "declare"}, func() error { return s.Store.Declare(names) })
}

func (s *fakeStore) Maintain(now time.Time) error {
	return s.do(storeOp{name: "maintain"}, func() error { return s.Store.Maintain(now) })
}

func (s *fakeStore) Snapshot(w io.Writer) (n int64, err error) {
	err = s.do(storeOp{name: "snapshot"}, func() (err error) {
		n, err = s.Store.Snapshot(w)
		return err
	})
	return n, err
}

func (s *fakeStore) Health() error { return errors.Join(s.health, s.Store.Health()) }

func (s *fakeStore) Close() error {
	return s.do(storeOp{name: "close"}, s.Store.Close)
}

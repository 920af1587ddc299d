package stint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// SetNames gives numbers of a file, which nobody has open, the labels that the program uses by now, and returns which
// numbers became which others. Buckets follow their label: where the file has it under another number, they and their holds move
// to the new one. A label that the file does not have is given to the buckets of the number: that is a rename. It is an
// error if a label of the file would be left without a number, or if the file is damaged. The file is replaced in one
// step by a new one; after an error or a crash it is as it was. looked is called now and then, with how many buckets were
// copied since; its error ends it. nil: nobody is told.
func SetNames(path string, labels map[Name]string, opts *BoltOptions, looked func(n int) error) (moved map[Name]Name, err error) {
	names := make(Names, len(labels))
	for name, label := range labels {
		names[name] = NameSpec{Label: label}
	}
	if err := joinErrors(names.mistakes()); err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil { // OpenBolt would make it
		return nil, fmt.Errorf("stint: %w", err)
	}
	s, err := OpenBolt(path, nil, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	after, moved, err := renumber(s.Names(), labels)
	if err != nil || maps.Equal(after, s.Names()) {
		return nil, err
	}
	if err := s.checkpoint(); err != nil {
		return nil, err
	}
	if _, err := s.Verify(nil); err != nil {
		return nil, err
	}
	return moved, s.rewrite(after, moved, looked)
}

// renumber returns the labels that a file has once it has those that are wanted.
func renumber(have, want map[Name]string) (after map[Name]string, moved map[Name]Name, err error) {
	after, moved = maps.Clone(have), make(map[Name]Name)
	for name, label := range have {
		for to, wanted := range want {
			if label == wanted && to != name {
				moved[name] = to
				delete(after, name)
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		label := want[name]
		if old, stays := after[name]; stays && old != label && slices.Contains(slices.Collect(maps.Values(have)), label) {
			errs = append(errs, fmt.Errorf("%w: name %d is to be %q, and is %q: say which number %q is to have", ErrNameMismatch, name, label, old, old))
		}
		after[name] = label
	}
	return after, moved, errors.Join(errs...)
}

// rewrite puts a file with other names in the place of the store's, whose journal is home.
func (s *BoltStore) rewrite(labels map[Name]string, moved map[Name]Name, looked func(n int) error) (err error) {
	temp, err := tempName(s.path, "compact")
	if err != nil {
		return fmt.Errorf("stint: rewrite %s: %w", s.path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
			err = fmt.Errorf("stint: rewrite %s: %w", s.path, err)
		}
	}()
	target, err := makeBoltFile(temp)
	if err != nil {
		return err
	}
	target.db.NoSync = true // until it is complete
	err = target.update(func(tx *bolt.Tx) error { return layOut(tx, labels) })
	for _, name := range s.allNames() {
		for batch, readErr := range s.homes(name) {
			if err = cmp.Or(err, readErr); err != nil {
				break
			}
			for i := range batch {
				batch[i].Key = movedKey(batch[i].Key, moved)
			}
			err = target.update(func(tx *bolt.Tx) error { return putHome(tx, nil, slices.Values(batch)) })
			if err == nil && looked != nil {
				err = looked(len(batch))
			}
		}
	}
	if err == nil {
		err = target.db.Sync()
	}
	if err != nil {
		target.close()
		return err
	}
	target.db.NoSync = false
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = labels
	return s.swapLocked(temp, target)
}

// movedKey returns the key that a bucket, or a hold, has when its Name has moved.
func movedKey(key Key, moved map[Name]Name) Key {
	if key.Name == Unknown {
		if held, err := ParseKey(key.ID); err == nil {
			return Key{Unknown, movedKey(held, moved).String()}
		}
	}
	if to, ok := moved[key.Name]; ok {
		key.Name = to
	}
	return key
}

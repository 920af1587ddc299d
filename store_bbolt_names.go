package stint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

// Names returns the labels that the file has, by number.
func (s *BoltStore) Names() map[Name]string {
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	return maps.Clone(s.names)
}

// Number returns the number that the file has for the label. A label that it does not have is given the lowest number
// that is free, and keeps it: for programs whose limits are named at run time.
func (s *BoltStore) Number(label string) (Name, error) {
	s.careMu.Lock() // a compaction copies the names
	defer s.careMu.Unlock()
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	if err := s.readAgainLocked(); err != nil {
		return Unknown, err
	}
	for name, l := range s.names {
		if l == label {
			return name, nil
		}
	}
	if s.readOnly {
		return Unknown, fmt.Errorf("%w %q: %s does not have it, and was opened to be read only", ErrUnknownName, label, s.path)
	}
	for name := Name(1); name != Unknown; name++ {
		if _, taken := s.names[name]; !taken {
			return name, s.declareLocked(Names{name: {Label: label}})
		}
	}
	return Unknown, fmt.Errorf("%w: all 65535 numbers are taken, none is left for %q", ErrNameMismatch, label)
}

// Declare enters the names that the file does not have, as OpenBolt does: all of them, or none where one is ErrNameMismatch.
func (s *BoltStore) Declare(names Names) error {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	if err := s.readAgainLocked(); err != nil {
		return err
	}
	return s.declareLocked(names)
}

// readAgainLocked reads the names that the file has, if some could not be entered: a commit that failed may be in force.
func (s *BoltStore) readAgainLocked() error {
	if !s.unread {
		return nil
	}
	err := s.update(func(tx *bolt.Tx) error { return s.readNames(tx.Bucket(metaBucket).Bucket(namesBucket)) })
	if err != nil {
		return fmt.Errorf("stint: read the names of %s again: %w", s.path, err)
	}
	s.unread = false
	return nil
}

func (s *BoltStore) declareLocked(names Names) error {
	numbers := make(map[string]Name, len(s.names))
	for name, label := range s.names {
		numbers[label] = name
	}
	added := make(map[Name]string)
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		label := names[name].Label
		if have, ok := s.names[name]; ok {
			if have != label {
				wrong = append(wrong, fmt.Errorf("%w: %s: name %d is %q in the file, and declared as %q", ErrNameMismatch, s.path, name, have, label))
			}
		} else if number, ok := numbers[label]; ok {
			wrong = append(wrong, fmt.Errorf("%w: %s: %q is name %d in the file, and declared as %d", ErrNameMismatch, s.path, label, number, name))
		} else {
			added[name] = label
		}
	}
	if len(wrong) > 0 || len(added) == 0 || s.readOnly {
		return errors.Join(wrong...)
	}
	if err := s.update(func(tx *bolt.Tx) error { return putNames(tx, added) }); err != nil {
		s.unread = s.unread || !errors.Is(err, ErrClosed)
		return fmt.Errorf("stint: enter names into %s: %w", s.path, err)
	}
	maps.Copy(s.names, added)
	return nil
}

func (s *BoltStore) readNames(table *bolt.Bucket) error {
	s.names = make(map[Name]string)
	return table.ForEach(func(k, v []byte) error {
		n, err := strconv.ParseUint(string(k), 10, 16)
		if err != nil || n == 0 || len(v) == 0 {
			return fmt.Errorf("its names table has %q for the number %q", v, k)
		}
		s.names[Name(n)] = string(v)
		return nil
	})
}

func putNames(tx *bolt.Tx, labels map[Name]string) error {
	table := tx.Bucket(metaBucket).Bucket(namesBucket)
	for name, label := range labels {
		if err := putSummed(table, namesBucket, name.decimal(), []byte(label)); err != nil {
			return err
		}
	}
	return nil
}

// bucketOf returns the name of the bbolt bucket that holds a Name's buckets; for Unknown, that of the holds.
func bucketOf(name Name) []byte {
	if name == Unknown {
		return holdsBucket
	}
	return name.decimal()
}

func (n Name) decimal() []byte { return strconv.AppendUint(nil, uint64(n), 10) }

// SetNames gives numbers of a file, which nobody has open, the labels that the program uses by now, and returns which
// numbers became which others. Buckets follow their label: where the file has it under another number, they and their holds move
// to the new one. A label that the file does not have is given to the buckets of the number: that is a rename. It is an
// error if a label of the file would be left without a number, or if the file is damaged. The file is replaced in one
// step by a new one; after an error or a crash it is as it was, unless all that failed was to make the new one's name durable.
// looked is called now and then, with how many buckets were copied since; its error ends it. nil: nobody is told.
func SetNames(path string, labels map[Name]string, opts *BoltOptions, looked func(n int) error) (moved map[Name]Name, err error) {
	names := make(Names, len(labels))
	for name, label := range labels {
		names[name] = NameSpec{Label: label}
	}
	if err := errors.Join(names.mistakes()...); err != nil {
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
	numbers, had := make(map[string]Name, len(want)), make(map[string]bool, len(have))
	for to, label := range want {
		numbers[label] = to
	}
	for name, label := range have {
		had[label] = true
		if to, wanted := numbers[label]; wanted && to != name {
			moved[name] = to
			delete(after, name)
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		label := want[name]
		if old, stays := after[name]; stays && old != label && had[label] {
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
	names, namesErr := s.allNames()
	err = cmp.Or(err, namesErr)
	for _, name := range names {
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

package boltstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
)

// ErrNameMismatch: the file has another label for a number, or another number
// for a label.
var ErrNameMismatch = errors.New("stint: names differ from the file's")

// names are the labels in the file.
type names struct {
	mu     sync.Mutex
	labels map[uint16]string
	unread bool // a write failed: the file may have other labels
}

// Names returns the labels that the file has, by number.
func (s *Store) Names() map[uint16]string {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	return maps.Clone(s.names.labels)
}

// Number returns the number that the file has for a label. A new label gets the
// lowest free number, and keeps it for ever.
func (s *Store) Number(label string) (name uint16, err error) {
	err = s.changeNames(func(labels map[uint16]string) error {
		var ok bool
		if name, ok = inverse(labels)[label]; ok {
			return nil
		}
		for n := uint16(1); n != 0; n++ {
			if _, taken := labels[n]; !taken {
				name, labels[n] = n, label
				return nil
			}
		}
		return fmt.Errorf("%w: all 65535 numbers are in use, none is left for %q", ErrNameMismatch, label)
	})
	if err != nil {
		return 0, err
	}
	return name, nil
}

// Declare adds labels that the file does not have: all of them, or none if one
// is ErrNameMismatch.
func (s *Store) Declare(declared map[uint16]string) error { return s.enter(declared, false, false) }

// Relabel gives numbers new labels. Numbers are permanent: if the file has
// another number for one of the labels, the error is ErrNameMismatch and nothing
// changes.
func (s *Store) Relabel(labels map[uint16]string) error { return s.enter(labels, true, false) }

// enter compares wanted labels with those of the file, and enters what the file does
// not have, unless compare is set.
func (s *Store) enter(wanted map[uint16]string, replace, compare bool) error {
	return s.changeNames(func(labels map[uint16]string) error {
		numbers := inverse(labels)
		var wrong []error
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			label := wanted[name]
			have, ok := labels[name]
			number, taken := numbers[label]
			switch {
			case ok && have == label:
			case ok && !replace:
				wrong = append(wrong, fmt.Errorf("%w: %s: name %d is %q in the file, and declared as %q",
					ErrNameMismatch, s.path, name, have, label))
			case taken:
				wrong = append(wrong, fmt.Errorf("%w: %s: %q is name %d in the file: a label keeps its number, "+
					"so it cannot be %d", ErrNameMismatch, s.path, label, number, name))
			case !compare:
				labels[name] = label
			}
		}
		return errors.Join(wrong...)
	})
}

func inverse(labels map[uint16]string) map[string]uint16 {
	numbers := make(map[string]uint16, len(labels))
	for name, label := range labels {
		numbers[label] = name
	}
	return numbers
}

// changeNames calls change with a copy of the labels, and writes the new labels
// to the file.
func (s *Store) changeNames(change func(labels map[uint16]string) error) error {
	s.maintenance.mu.Lock() // a compaction copies the labels
	defer s.maintenance.mu.Unlock()
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	if err := s.names.readLocked(s); err != nil {
		return err
	}
	labels := maps.Clone(s.names.labels)
	if err := change(labels); err != nil {
		return err
	}
	added := maps.Clone(labels)
	maps.DeleteFunc(added, func(name uint16, label string) bool {
		return s.names.labels[name] == label
	})
	if len(added) == 0 {
		return nil
	}
	if err := s.update(func(tx *bolt.Tx) error { return boltfile.PutNames(tx, added) }); err != nil {
		s.names.unread = s.names.unread || !s.readOnly && !errors.Is(err, ErrClosed)
		return fmt.Errorf("stint: write labels to %s: %w", s.path, err)
	}
	s.names.labels = labels
	return nil
}

func (n *names) current(s *Store) (map[uint16]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.readLocked(s)
	return maps.Clone(n.labels), err
}

// readLocked reads the labels again if a write of labels failed, because that
// commit may be in force.
func (n *names) readLocked(s *Store) error {
	if !n.unread {
		return nil
	}
	err := s.update(func(tx *bolt.Tx) (err error) {
		n.labels, err = boltfile.ReadNames(boltfile.NamesTable(tx))
		return err
	})
	if err != nil {
		return fmt.Errorf("stint: read the labels of %s again: %w", s.path, err)
	}
	n.unread = false
	return nil
}

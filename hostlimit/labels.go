package hostlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/stint-go/stint"
)

// Labels returns the label of each Name in the file at path, for a program that
// gives numbers to limits which its configuration names. If a process shares
// the file, it sends a copy, which takes as long as a backup: call Labels when
// the program starts. If it cannot send one, because the disk fails, they are the
// Names that this process declared. Without a file there are none. If a process
// has the file and does not share it, Labels waits for a second at most, and then
// returns [stint.ErrLocked]. Other errors are those of [stint.OpenBolt] and [Dial].
func Labels(path string) (map[stint.Name]string, error) {
	const patience, pause = time.Second, 5 * time.Millisecond
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		store, err := stint.OpenBolt(path, nil, &stint.BoltOptions{ReadOnly: true, LockTimeout: time.Millisecond})
		if err == nil {
			labels := store.Labels()
			return labels, store.Close()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if !errors.Is(err, stint.ErrLocked) {
			return nil, err
		}
		labels, asked := labelsOfOwner(path)
		if asked == nil {
			return labels, nil
		}
		if !errors.Is(asked, ErrNoOwner) {
			return nil, asked
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("hostlimit: labels of %s: %w", path, err)
		}
	}
}

// labelsOfOwner returns the labels in the file that a process shares. The process
// need not declare all of them, so they come from a copy of its file. If it leaves
// during the copy, the error is ErrNoOwner. If it has no place for the connection
// of the copy, the error is ErrRefused.
func labelsOfOwner(path string) (map[stint.Name]string, error) {
	owner, err := Dial(path, nil, nil)
	if err != nil {
		return nil, err
	}
	labels := owner.Labels()
	copied, err := labelsOfCopy(owner)
	if errors.Is(err, ErrNoAnswer) {
		err = fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	if isAny(err, ErrNoOwner, ErrRefused) {
		return nil, errors.Join(err, owner.Close())
	}
	maps.Copy(labels, copied) // none after an error
	return labels, owner.Close()
}

func labelsOfCopy(owner *Guest) (labels map[stint.Name]string, err error) {
	file, err := os.CreateTemp("", "stint-labels-*.db")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = owner.Snapshot(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	store, err := stint.OpenBolt(file.Name(), nil, &stint.BoltOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return store.Labels(), store.Close()
}

package hostlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/stint-go/stint"
)

// Labels returns the label of each Name in the file at path, for a program that
// gives numbers to limits which its configuration names. If a process shares
// the file, they are the Names that this process declared. Without a file there
// are none. If a process has the file and does not share it, Labels waits for a
// second at most, and then returns [stint.ErrLocked]. Other errors are those of
// [stint.OpenBolt] and [Dial].
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
		owner, asked := Dial(path, nil, nil)
		if asked == nil {
			labels := owner.Labels()
			return labels, owner.Close()
		}
		if !errors.Is(asked, ErrNoOwner) {
			return nil, asked
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("hostlimit: labels of %s: %w", path, err)
		}
	}
}

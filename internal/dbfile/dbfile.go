// Package dbfile opens the file of a Limiter for programs that do not know its
// limits, such as the command.
package dbfile

import (
	"iter"
	"time"

	"github.com/stint-go/stint"
)

// A Store is what stint.OpenBolt returns, with what needs no limits.
type Store interface {
	stint.Store
	stint.FileStore

	// Labels returns the labels that the file has, by number.
	Labels() map[stint.Name]string

	// Number returns the number that the file has for a label. A new label gets
	// the lowest free number, and keeps it for ever. If no number is free, the
	// error is ErrNameMismatch.
	Number(label string) (stint.Name, error)

	// Relabel gives numbers new labels. Their buckets stay. Numbers are permanent:
	// if the file has another number for one of the labels, the error is
	// ErrNameMismatch and the file keeps all of its labels.
	Relabel(labels map[stint.Name]string) error

	// Now returns the time that a Limiter of the file would have. err is not nil
	// if the file cannot be read. doubt says why the wall clock is not believed,
	// or is nil.
	Now() (now time.Time, doubt, err error)

	// Merge saves the changes that end later than what the file has, all of them or
	// none, and calls saved with the key of each. It has only a few thousand in
	// memory: if there are more, a copy of the file takes the place of the file.
	Merge(changes iter.Seq2[stint.Change, error], saved func(stint.Key)) error

	// Compact rewrites the file without its free pages, and puts the new one in
	// place of the old one in one step, while saves and loads go on. After an
	// error the old file stays in use, with one exception: if only the name of the
	// new file could not be made durable, the new file is in use, and each save
	// tries first to make the name durable.
	Compact() error
}

// Open is stint.OpenBolt.
func Open(path string, names stint.Names, opts *stint.BoltOptions) (Store, error) {
	store, err := stint.OpenBolt(path, names, opts)
	if err != nil {
		return nil, err
	}
	return store.(Store), nil
}

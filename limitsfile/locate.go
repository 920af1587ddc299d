package limitsfile

import (
	"errors"

	"github.com/stint-go/stint"
)

// Locate returns an error with the files and lines of the mistakes in it: those of
// the override that a *stint.ConfigError has the ID of, or else of the first label of
// its limit. It is for checks of limits that were loaded from these files, such as
// shares.Check. A ConfigError that has a File stays as it is, and so do other errors.
func Locate(err error, names stint.Names, defaultsFile string, overrideFiles ...string) error {
	if err == nil {
		return nil
	}
	r := newReader(names)
	for _, s := range files(defaultsFile) {
		r.read(s, r.readDefaults)
	}
	for _, s := range files(overrideFiles...) {
		r.read(s, r.readOverrides)
	}
	all := joined(err)
	if all == nil {
		all = []error{err}
	}
	located := make([]error, len(all))
	for i, err := range all {
		located[i] = err
		if wrong, ok := err.(*stint.ConfigError); ok && wrong.File == "" {
			located[i] = r.place(*wrong)
		}
	}
	return errors.Join(located...)
}

func (r *reader) place(wrong stint.ConfigError) error {
	name := r.labels[wrong.Label]
	at, ok := r.ids[name][wrong.ID]
	if !ok {
		at, ok = r.places[name]
	}
	if ok {
		wrong.File, wrong.Line = at.file, at.node.Line
	}
	return &wrong
}

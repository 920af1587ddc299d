package limitsfile

import (
	"errors"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/share"
)

// finish returns the limits, or the mistakes of all files. Mistakes in shares
// of a total come last, because their limits may be in several files.
func (r *reader) finish() (*stint.Limits, error) {
	limits, err := stint.NewLimits(r.names.WithLimits(r.defaults), r.overrides...)
	others, shares := mistakesIn(err)
	if r.all == nil {
		r.all = others
	}
	for _, wrong := range shares {
		r.place(wrong)
		r.all = append(r.all, wrong)
	}
	if r.all != nil {
		return nil, errors.Join(r.all...)
	}
	return limits, nil
}

// mistakesIn splits the error of NewLimits: the mistakes in shares of a total,
// and all others.
func mistakesIn(err error) (others []error, shares []*stint.ConfigError) {
	for _, err := range joined(err) {
		wrong, ok := errors.AsType[*stint.ConfigError](err)
		if _, ofShare := errors.AsType[*share.Mistake](err); ok && ofShare {
			shares = append(shares, wrong)
		} else {
			others = append(others, err)
		}
	}
	return others, shares
}

// joined returns the errors that an error joins.
func joined(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return nil
}

// place sets the file and line of a mistake: those of the override of its id,
// or else of the first label of its limit.
func (r *reader) place(wrong *stint.ConfigError) {
	m, _ := errors.AsType[*share.Mistake](wrong)
	name := r.labels[m.Label]
	at, ok := r.ids[name][m.ID]
	if !m.OfID || !ok {
		at, ok = r.places[name]
	}
	if ok {
		wrong.File, wrong.Line = at.file, at.node.Line
	}
}

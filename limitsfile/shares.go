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
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil, nil
	}
	for _, err := range joined.Unwrap() {
		wrong := (*stint.ConfigError)(nil)
		if errors.As(err, &wrong) && errors.As(err, new(*share.Mistake)) {
			shares = append(shares, wrong)
		} else {
			others = append(others, err)
		}
	}
	return others, shares
}

// place sets the file and line of a mistake: those of the override of its id,
// or else of the first label of its limit.
func (r *reader) place(wrong *stint.ConfigError) {
	var m *share.Mistake
	errors.As(wrong, &m)
	name := r.labels[m.Label]
	at, ok := r.ids[name][m.ID]
	if !m.OfID || !ok {
		at, ok = r.places[name]
	}
	if ok {
		wrong.File, wrong.Line = at.file, at.node.Line
	}
}

package limitsfile

import (
	"errors"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/share"
)

// finish returns the limits, or the mistakes of all files, then those in shares
// of a total: these are between limits that may be in several files.
func (r *reader) finish() (*stint.Limits, error) {
	limits, err := stint.NewLimits(r.names, r.defaults, r.overrides)
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

// mistakesIn returns the mistakes in shares of a total, and all others, that
// NewLimits has joined.
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

// place says where the limit of a mistake is, or the override of its id. A
// mistake in the declarations is where the label is first.
func (r *reader) place(wrong *stint.ConfigError) {
	var m *share.Mistake
	errors.As(wrong, &m)
	name := r.labels[m.Label]
	at, ok := r.ids[name][m.ID]
	if !m.OfID || !ok {
		at, ok = r.places[name]
	}
	if ok {
		wrong.File, wrong.Line = *at.file, at.node.Line
	}
}

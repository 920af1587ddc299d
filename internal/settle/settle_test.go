package settle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/settle"
)

// foreign is a Decider without SpendUpTo, whose Spend denies what its Check
// reports.
type foreign struct {
	stint.Decider
	left []int64 // what the Checks report, in turn; the last one again and again
	most int64   // Spend takes no more
}

func (f *foreign) Check(key stint.Key, _ int64) (stint.Decision, error) {
	d := stint.Decision{Allowed: true, Key: key, Remaining: f.left[0]}
	if len(f.left) > 1 {
		f.left = f.left[1:]
	}
	return d, nil
}

func (f *foreign) Spend(key stint.Key, cost int64) (stint.Decision, error) {
	if cost > f.most {
		return stint.Decision{Key: key, RetryAfter: time.Second}, nil
	}
	return stint.Decision{Allowed: true, Key: key}, nil
}

// SpendUpTo ends, whatever a Decider that is not of this module answers.
func TestSpendUpTo(t *testing.T) {
	for name, tc := range map[string]struct {
		left       []int64
		most, want int64
	}{
		"agrees":              {[]int64{5}, 5, 4},
		"others spend":        {[]int64{3, 2, 1}, 1, 1},
		"denies all":          {[]int64{5}, 0, 0},
		"goes to and fro":     {[]int64{3, 2, 3, 2}, 1, 0},
		"more than was asked": {[]int64{9, 8, 7}, 0, 0},
		"nothing":             {[]int64{0}, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			taken, _, err := settle.SpendUpTo(&foreign{left: tc.left, most: tc.most}, tokens.Key(""), 4)
			require.NoError(t, err)
			require.Equal(t, tc.want, taken)
		})
	}
}

package redislimit

import (
	"context"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// replicated is a Client of a server with any number of replicas, which have
// everything at once.
type replicated struct{ *rueidisClient }

func (c replicated) EvalWait(ctx context.Context, command, script string, keys, args []string, replicas int,
	_ time.Duration,
) (any, int, error) {
	reply, err := c.Eval(ctx, command, script, keys, args)
	return reply, replicas, err
}

// lacks has what no Limiter of this package supports.
var lacks = slices.Clip([]decidertest.Feature{decidertest.Calendars, decidertest.Queues,
	decidertest.HeldFreeIDs, decidertest.LeasedFigures})

// opened returns a Limiter for a case of a suite.
func opened(t testing.TB, url string, c decidertest.Config, o *Options) (decidertest.Limiter, error) {
	o.Durability, o.Now, o.Timeout = c.Level, c.Now, 20*time.Second
	client, err := script.NewRueidis(url, o.Timeout, nil)
	if err != nil {
		return nil, err
	}
	l, err := New(replicated{client}, c.Limits, o)
	if err != nil {
		client.Close()
		return nil, err
	}
	t.Cleanup(func() { l.Close() })
	return l, nil
}

// withAway is a Limiter whose program gives Options.Away the same limits.
type withAway struct {
	*Limiter
	away *stint.Limiter
}

func (l withAway) SetLimits(limits *stint.Limits) error {
	if err := l.away.SetLimits(limits); err != nil {
		return err
	}
	return l.Limiter.SetLimits(limits)
}

// openedAway returns a Limiter whose server is away, and whose Options.Away has the
// limits of the case.
func openedAway(t testing.TB, nowhere string, c decidertest.Config) (decidertest.Limiter, error) {
	mine, err := stint.New(stint.NewMemStore(), c.Limits, &stint.Options{Durability: c.Level, Now: c.Now})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { mine.Close() })
	l, err := opened(t, nowhere, c, &Options{Away: mine})
	if err != nil {
		return nil, err
	}
	return withAway{l.(*Limiter), mine}, nil
}

// TestDecider runs the conformance suite of Decider with a server, and without
// one: then Options.Away decides.
func TestDecider(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		s, prefix := commonServer(t)
		decidertest.Run(t, &decidertest.Subject{
			Name:  "redis",
			Lacks: lacks,
			Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
				return opened(t, s.url, c, &Options{Prefix: prefix + filepath.Base(c.Folder)})
			},
		})
	})
	t.Run("away", func(t *testing.T) {
		t.Parallel()
		nowhere := "unix://" + filepath.Join(t.TempDir(), "s")
		decidertest.Run(t, &decidertest.Subject{
			Name: "away", Forgets: true,
			Lacks: append(lacks, decidertest.Holds),
			Open: func(t testing.TB, c decidertest.Config) (decidertest.Limiter, error) {
				return openedAway(t, nowhere, c)
			},
		})
	})
}

// A Limiter has the methods that its documentation lists, and none of a field's.
func TestMethods(t *testing.T) {
	t.Parallel()
	field := reflect.TypeFor[*atomic.Pointer[limitsInForce]]()
	for i := range field.NumMethod() {
		_, has := reflect.TypeFor[*Limiter]().MethodByName(field.Method(i).Name)
		require.False(t, has, field.Method(i).Name)
	}
}

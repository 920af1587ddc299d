package decidertest

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"math"
	"path"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
)

//go:embed semantics/*.yml
var semantics embed.FS

// source is one example of the folder semantics; boulder.yml there says what
// the fields of a step mean.
type source struct {
	Name   string
	Limits []struct {
		Burst, Count int64
		Period       time.Duration
	}
	Steps []struct {
		At, Every, Over time.Duration
		Repeat, Cost    *int64
		Allowed         int64
		Remaining       *int64
		RetryAfter      *time.Duration `yaml:"retry_after"`
		ResetAfter      *time.Duration `yaml:"reset_after"`
	}
	names []stint.Name // of Limits, in the suite
}

// caseSources checks that the Decider answers as the sources do: Boulder, and
// descriptions of other algorithms.
func caseSources(e *env) {
	if e.level == stint.Leased && !e.subject.has(LeasedFigures) {
		e.skip("%s has no exact figures with leases", e.subject.Name)
	}
	files, err := fs.Glob(semantics, "*/*.yml")
	require.NoError(e, err)
	require.NotEmpty(e, files)
	var all []source
	names := stint.Names{}
	for _, file := range files {
		text, err := semantics.ReadFile(file)
		require.NoError(e, err)
		var sources []source
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		require.NoError(e, decoder.Decode(&sources))
		for _, s := range sources {
			if e.level >= stint.Leased && s.decisions() > 100 { // each is a commit
				continue
			}
			s.Name = path.Base(file) + "/" + s.Name
			for _, l := range s.Limits {
				name := stint.Name(len(names) + 1)
				names[name] = stint.NameSpec{Label: fmt.Sprint("limit", name),
					Limit: stint.Limit{Burst: l.Burst, Count: l.Count, Period: l.Period}}
				s.names = append(s.names, name)
			}
			all = append(all, s)
		}
	}
	e.openWith(limitsOf(e, names), newClock())
	for _, s := range all {
		s.run(e)
	}
}

func orOne(n *int64) int64 {
	if n == nil {
		return 1
	}
	return *n
}

func (s *source) decisions() (n int64) {
	for _, step := range s.Steps {
		n += orOne(step.Repeat)
	}
	return n
}

// run makes the decisions of a source, on buckets that no other one has.
func (s *source) run(e *env) {
	begin := e.clock.now()
	for n, step := range s.Steps {
		allowed, repeat := int64(0), orOne(step.Repeat)
		var last stint.Decision
		for i := range repeat {
			at := step.At + step.Every*time.Duration(i)
			if step.Over > 0 {
				at = step.At + time.Duration(int64(step.Over)*i/(repeat-1))
			}
			e.clock.pass(begin.Add(at).Sub(e.clock.now()))
			reqs := make([]stint.Request, len(s.names))
			for j := range reqs {
				reqs[j] = stint.Request{Key: s.names[j].Key("id"), Cost: orOne(step.Cost)}
			}
			if last, _ = e.together(reqs...); last.Allowed {
				allowed++
			}
		}
		remaining, reset := int64(math.MaxInt64), time.Duration(0)
		for _, name := range s.names {
			b, err := e.Bucket(name.Key("id"))
			require.NoError(e, err)
			remaining, reset = min(remaining, b.Remaining), max(reset, b.ResetAfter)
		}
		require.Equal(e, step.Allowed, allowed, "%s, step %d: allowed", s.Name, n+1)
		if step.Remaining != nil {
			require.Equal(e, *step.Remaining, remaining, "%s, step %d: remaining", s.Name, n+1)
		}
		if step.RetryAfter != nil {
			require.Equal(e, *step.RetryAfter, last.RetryAfter, "%s, step %d: retry_after", s.Name, n+1)
		}
		if step.ResetAfter != nil {
			require.Equal(e, *step.ResetAfter, reset, "%s, step %d: reset_after", s.Name, n+1)
		}
	}
}

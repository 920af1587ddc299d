package levels

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestMayWait(t *testing.T) {
	const Plain, Synced, Free stint.Name = 1, 2, 3
	limit := func(d stint.Durability) stint.Limit {
		l := stint.PerDay(3)
		l.Durability = d
		return l
	}
	limits, err := stint.NewLimits(stint.Names{
		Plain:  {Label: "Plain", Limit: stint.PerDay(3)},
		Synced: {Label: "Synced", Limit: limit(stint.Synced)},
		Free:   {Label: "Free", Limit: stint.Unlimited},
	}, stint.Override{Key: Synced.Key("quick"), Limit: limit(stint.Memory)}, stint.Override{Key: Synced.Key("bad"), Limit: stint.Blocked})
	require.NoError(t, err)
	for _, c := range []struct {
		name      string
		req       stint.Request
		byDefault stint.Durability
		want      bool
	}{
		{"default", Plain.Key("a").Cost(1), stint.Flushed, false},
		{"another default", Plain.Key("a").Cost(1), stint.Leased, true},
		{"level of the limit", Synced.Key("a").Cost(1), stint.Flushed, true},
		{"level of an override", Synced.Key("quick").Cost(1), stint.Synced, false},
		{"blocked", Synced.Key("bad").Cost(1), stint.Synced, false},
		{"unlimited", Free.Key("a").Cost(1), stint.Synced, false},
		{"given", stint.Request{Key: Synced.Key("a"), Limit: limit(stint.Flushed)}, stint.Synced, false},
		{"given, without a level", stint.Request{Key: Free.Key("a"), Limit: stint.PerDay(3)}, stint.Leased, true},
		{"given unlimited", stint.Request{Key: Synced.Key("a"), Limit: stint.Unlimited}, stint.Synced, false},
		{"unknown", stint.Name(9).Key("a").Cost(1), stint.Synced, false},
	} {
		require.Equal(t, c.want, MayWait(limits, &c.req, c.byDefault), c.name)
	}
}

package away

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// dying is a Store of a process that dies after some saves.
type dying struct {
	stint.Store
	saves int // that are left
}

func (s *dying) Save(changes []stint.Change) error {
	if s.saves--; s.saves < 0 {
		return errors.New("it has died")
	}
	return s.Store.Save(changes)
}

// openOn returns a Node whose home is in the store, as if that were a file.
// The debts in it are not adopted.
func (s *fakeServer) openOn(t *testing.T, store stint.Store, nodes int) *Node {
	t.Helper()
	n := s.open(t, "", nodes, perID)
	require.NoError(t, n.Local.Close())
	own, err := n.names(labeled(perID))
	require.NoError(t, err)
	own[nodesName] = nodesSpec(stint.AnyID)
	limits, err := stint.NewLimits(own)
	require.NoError(t, err)
	n.Local, err = stint.New(store, limits, &stint.Options{Now: s.Time, FlushInterval: time.Hour})
	require.NoError(t, err)
	n.Config.Local, n.level = "a file", 0
	clear(n.adopted)
	return n
}

// If a process dies while it adopts debts, they are worth no less to the next one.
func TestAdoptDying(t *testing.T) {
	t.Parallel()
	const most = 6
	for _, nodes := range [][2]int{{2, 8}, {8, 2}} {
		for saves := range most + 1 {
			s := &fakeServer{now: time.Unix(1_700_000_000, 0), charged: make(map[string]int64)}
			store := stint.NewMemStore()
			n := s.openOn(t, store, nodes[0])
			require.NoError(t, n.adopt([]stint.Name{perID}))
			n.spend(t, "a", 1)
			worth := n.owes(t, "a") * time.Duration(nodes[1]) / time.Duration(nodes[0])
			require.NoError(t, n.Close())

			n = s.openOn(t, &dying{store, saves}, nodes[1])
			err := n.adopt([]stint.Name{perID})
			if err == nil {
				require.Equal(t, worth, n.owes(t, "a"))
			}
			closed := n.Close()
			if saves == most {
				require.NoError(t, errors.Join(err, closed))
			}

			n = s.openOn(t, store, nodes[1])
			require.NoError(t, n.adopt([]stint.Name{perID}))
			if err == nil && closed == nil {
				require.Equal(t, worth, n.owes(t, "a"), "%v after %d saves", nodes, saves)
			} else {
				require.GreaterOrEqual(t, n.owes(t, "a"), worth, "%v after %d saves", nodes, saves)
			}
			require.NoError(t, n.Close())
		}
	}
}

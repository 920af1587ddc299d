package script

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExplain has the replies of servers whose errors mean more than themselves, as a
// script replies them, and as servers before Redis 7 do.
func TestExplain(t *testing.T) {
	const before7 = "ERR Error running script (call to f_6b1b): @user_script:1: @user_script: 1: -"
	for _, c := range []struct {
		reply       string
		away, moved bool
	}{
		{"READONLY You can't write against a read only replica.", true, true},
		{"MASTERDOWN Link with MASTER is down", true, true},
		{"LOADING Redis is loading the dataset in memory", true, true},
		{"UNBLOCKED force unblock from blocking operation", false, true}, // of WAIT, which is asked by itself
		{"CLUSTERDOWN The cluster is down", true, false},
		{"NOREPLICAS Not enough good replicas to write.", true, false},
		{"MISCONF Errors writing to the AOF file", true, false},
		{"OOM command not allowed", false, false},
		{"NOPERM this user has no permissions", false, false},
		{"ERR value is not READONLY: -1", false, false},
	} {
		for _, prefix := range []string{"", "STINT NONE ", before7, "STINT NONE @user_script: 30: -"} {
			err := fmt.Errorf("a client says: %w", ServerError(prefix+c.reply))
			require.Equal(t, c.away, IsAway(Explain(err)), prefix+c.reply)
			require.Equal(t, c.moved, mayHaveMoved(err), prefix+c.reply)
		}
		some := ServerError("STINT SOME " + c.reply)
		require.ErrorIs(t, Explain(some), ErrNoAnswer)
		require.NotErrorIs(t, Explain(some), ErrAway)
		require.Equal(t, c.moved, mayHaveMoved(some))
	}
	require.False(t, mayHaveMoved(nil))
	require.False(t, mayHaveMoved(ErrAway))
}

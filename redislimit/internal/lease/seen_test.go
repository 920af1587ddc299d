package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// An older answer that comes late changes nothing. After the server's clock was
// set back, the answer to a later question is remembered, although its time is
// before that of the last one.
func TestSeenOrder(t *testing.T) {
	t.Parallel()
	key := stint.Name(1).Key("a")
	second := int64(time.Second)
	empty := func(now int64) script.Answer { return script.Answer{Now: now, TAT: now + 100*second} }
	table := NewTable(Config{RepeatDenials: time.Second})
	put := func(o script.Answer, sent int64) { table.Saw(&script.Request{Bucket: key, Answer: o}, sent, true) }
	denied := func(elapsed int64) (o script.Answer, is bool) {
		r := script.Request{Bucket: key, Need: 1}
		is = table.Denies(&r, elapsed)
		return r.Answer, is
	}

	put(empty(1000*second+2), 5)
	put(empty(1000*second+1), 4)
	o, is := denied(5)
	require.True(t, is)
	require.Equal(t, empty(1000*second+2).TAT, o.TAT)

	_, is = denied(10 * second)
	require.False(t, is, "it is too old")
	put(empty(900*second), 10*second)
	o, is = denied(10 * second)
	require.True(t, is)
	require.Equal(t, empty(900*second).TAT, o.TAT)
}

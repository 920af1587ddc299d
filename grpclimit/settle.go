package grpclimit

import (
	"context"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Errors of Settle.
var (
	// ErrSettled says that the cost of a call was settled before, or that
	// RefundCode has returned its tokens.
	ErrSettled = rules.ErrSettled

	// ErrNotSettled says that no rule with Settle has decided on the call under
	// that name.
	ErrNotSettled = rules.ErrNotSettled
)

// Settle replaces the cost of a call by the true one, in tokens. name is the
// limit of a rule with Settle, and ctx that of the handler. If the call used less
// than its bound, the rest returns, except for what time has brought back already.
// If it used more, Settle spends as many more tokens as there are, and short is
// how many were missing. rules.Settle says what that guarantees.
//
// Settle may be called after the handler has returned. A second call for a name
// returns ErrSettled. After any error the bound stays spent; after
// stint.ErrNotDurable, or if a Decider lost an answer, more may be spent. A
// negative cost is stint.ErrNegativeCost, and may be corrected. If FailOpen let
// the call pass, the error is ErrNotSettled.
func Settle(ctx context.Context, name stint.Name, cost int64) (short int64, err error) {
	return rules.Settle(ctx, name, cost)
}

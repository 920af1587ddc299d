package httplimit

import (
	"net/http"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Errors of Settle.
var (
	// ErrSettled says that the cost of a request was settled before, or that
	// RefundStatus has returned its tokens.
	ErrSettled = rules.ErrSettled

	// ErrNotSettled says that no rule with Settle has decided on the request under
	// that name.
	ErrNotSettled = rules.ErrNotSettled
)

// Settle replaces the cost of a request by the true one, in tokens. name is the
// limit of a rule with Settle. If the request used less than its bound, the rest
// returns, except for what time has brought back already. If it used more, Settle
// spends as many more tokens as there are, and short is how many were missing.
//
// Settle may be called after the response has begun, and after the handler has
// returned. It is best deferred, so that a client that disconnects settles, too.
// A second call for a name returns ErrSettled. After any error the bound stays
// spent; after stint.ErrNotDurable, or if a Decider lost an answer, more may be
// spent. A negative cost is stint.ErrNegativeCost, and may be corrected.
//
// If the Limiter failed and FailOpen let the request pass, there is nothing to
// settle: the error is ErrNotSettled. If a Shadow rule did not spend, short is
// the cost. [rules.Settle] says what that guarantees, and does the same for any
// protocol.
func Settle(r *http.Request, name stint.Name, cost int64) (short int64, err error) {
	return rules.Settle(r.Context(), name, cost)
}

// SetStatus tells the rules of a request which status the client will get, if
// code around the middleware writes it. It is for frameworks whose handlers return
// an error, and which write the status of that error only after the middleware has
// returned: call it in the adapter between the middleware and the framework. The
// first status counts, whether SetStatus or the handler chooses it. A status
// below 200, except 101, is ignored. An Observer must not call SetStatus: it may
// run while the rules act on a status, and would wait for itself.
func SetStatus(r *http.Request, status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	for p := passOf(r); p != nil; p = p.outer {
		if p.writer != nil {
			p.writer.choose(status)
		}
	}
}

package rules

// state is what a rule of a pass has done. In the state pending there is no
// decision to show.
type state uint8

const (
	pending  state = iota // nothing is decided, perhaps because the Limiter failed
	denied                // nothing is spent, because this rule or another one denied
	checked               // the rule allows, and spends if it counts the outcome
	spent                 // the tokens are spent
	returned              // the tokens are refunded
	settled               // the true cost is known
	states   = iota
)

// event is what happens to a rule of a pass.
type event uint8

const (
	deny event = iota
	check
	spend
	refund
	settle
	events = iota
)

// next is the state after each event. An event without an entry does not happen
// in that state: no event leads back to pending.
var next = [states][events]state{
	pending: {deny: denied, check: checked, spend: spent},
	checked: {spend: spent},
	spent:   {refund: returned, settle: settled},
	denied:  {settle: settled}, // a Shadow rule, or a request that was denied
}

// to changes the state, and reports whether the event may happen in it.
func (a *part[R, O]) to(on event) bool {
	after := next[a.state][on]
	if after == pending {
		return false
	}
	a.state = after
	return true
}

// isDecided reports whether there is a decision to show.
func (a *part[R, O]) isDecided() bool { return a.state != pending }

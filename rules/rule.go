package rules

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/clientid"
	"github.com/stint-go/stint/internal/lockout"
)

// A Rule says what a limit does with the requests of a door. What the options
// mean to a client is in the documentation of the doors, such as
// httplimit.Rule.
type Rule struct {
	// Optional makes the rule skip requests whose key is ErrNoID.
	Optional bool

	// Count makes the rule spend at the end of a request, and only if Count
	// returns true for the outcome. Before that the bucket is only checked.
	Count func(outcome int) bool

	// Refund makes the rule refund its tokens if Refund returns true for the
	// outcome, except those that time has brought back.
	Refund func(outcome int) bool

	// LockOut holds the bucket for this long after a request that leaves fewer
	// tokens than its cost, or no token if CostVaries. LockOutMax makes each
	// lock-out of an id twice as long as the one before, up to LockOutMax.
	LockOut, LockOutMax time.Duration
	CostVaries          bool

	// InFlight is how many requests of a key may run at the same time; 0 means no
	// bound. A request waits for its place for InFlightWait, if at most
	// InFlightQueue others do. Ask.InFlight replaces it.
	InFlight      int64
	InFlightWait  time.Duration
	InFlightQueue int

	// Settle makes the cost an upper bound, which the function Settle replaces by
	// the true one.
	Settle bool

	// Shadow makes the rule decide and spend, but never deny.
	Shadow bool
}

// Mistake returns what is wrong with a rule, or "".
func (ru *Rule) Mistake() string {
	switch {
	case ru.InFlight < 0:
		return fmt.Sprintf("has the InFlight %d, want 0 or more", ru.InFlight)
	case ru.Settle && (ru.Count != nil || ru.LockOut > 0):
		return "has Settle, and a count of outcomes or LockOut, which need the cost"
	}
	return ""
}

// stamps reports whether the rule needs the instant of its spend: to return
// tokens, or to lock out.
func (ru *Rule) stamps() bool { return ru.Refund != nil || ru.LockOut > 0 || ru.Settle }

// Ends reports whether the rule has something to do at the end of a request.
func (ru *Rule) Ends() bool { return ru.Count != nil || ru.Refund != nil || ru.LockOut > 0 }

// ErrNoID says that a request does not have the id of its bucket.
var ErrNoID = errors.New("rules: the request has no id")

// IsInvalid reports whether an error is about the request: it has no id, or a
// refused one, or a cost that its limit never admits. Other errors are the
// Limiter's.
func IsInvalid(err error) bool {
	return errors.Is(err, ErrNoID) || errors.Is(err, stint.ErrInvalidID) ||
		errors.Is(err, stint.ErrNegativeCost) || errors.Is(err, stint.ErrCostOverBurst)
}

// IsMissing reports whether there is no Limiter, or a nil one of any type.
func IsMissing(lim stint.Decider) bool {
	v := reflect.ValueOf(lim)
	return lim == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// A Door holds requests to rules. Any number of goroutines may use it.
type Door struct {
	lim    stint.Decider
	rules  []Rule
	stamps bool // some rule needs the instant of its spend
	names  clientid.Names
}

// New returns a door with rules. It panics on mistakes in the program: no
// Limiter, a negative InFlight, or Settle beside Count or LockOut.
func New(lim stint.Decider, rules ...Rule) *Door {
	if IsMissing(lim) {
		panic("rules: New: no limiter")
	}
	d := &Door{lim: lim, rules: append([]Rule(nil), rules...)}
	for i := range d.rules {
		ru := &d.rules[i]
		if mistake := ru.Mistake(); mistake != "" {
			panic(fmt.Sprintf("rules: New: rule %d %s", i+1, mistake))
		}
		d.stamps = d.stamps || ru.stamps()
	}
	return d
}

// Limiter returns the Limiter of the door.
func (d *Door) Limiter() stint.Decider { return d.lim }

// An Ask is what a request asks of one rule.
type Ask struct {
	Rule     int       // its index among the rules of New
	Key      stint.Key // bucket of the request
	Err      error     // why there is no Key, such as ErrNoID
	Cost     int64
	InFlight int64 // how many may run, if it is not Rule.InFlight; below 0 none may
	Later    bool  // the request takes only its place, and Pass.Spend spends later
	Unix     bool  // the client came over a Unix socket: then the id Unix is good for any limit

	label string
}

// Resolve brings the key of an Ask into the canonical spelling of its limit. ok is
// false if the rule skips the request. If a Shadow rule skips it because of an
// error, that goes to report.
func (d *Door) Resolve(ask *Ask, report func(error)) (ok bool, err error) {
	ru := &d.rules[ask.Rule]
	if err = ask.Err; err == nil {
		names := d.names.Of(d.lim)
		ask.label = names[ask.Key.Name].Label
		if ask.Key, err = clientid.Key(names, ask.Key, ask.Unix, ru.LockOutMax > 0); err == nil {
			return true, nil
		}
	}
	switch {
	case ru.Optional && errors.Is(err, ErrNoID):
		return false, nil
	case ru.Shadow:
		report(err)
		return false, nil
	}
	return false, err
}

// Unix is the id of all clients on Unix sockets that have no address.
const Unix = clientid.Unix

// IsLockOutCount reports whether a rule with LockOutMax remembers lock-outs under
// a key. A hold on that key denies no request.
func IsLockOutCount(key stint.Key) bool { return lockout.IsCount(key.ID) }

// Add adds the rule of a resolved Ask to those of a request. Of several rules
// with the same bucket, the first one that is not a Shadow rule counts, and the
// first bound on requests in flight.
func (d *Door) Add(parts []Part, ask *Ask) []Part {
	ru := &d.rules[ask.Rule]
	most := ask.InFlight
	if most == 0 {
		most = ru.InFlight
	}
	for i := range parts {
		a := &parts[i]
		if a.RuleKey != ask.Key {
			continue
		}
		if a.Shadow && !ru.Shadow {
			parts = append(parts[:i], parts[i+1:]...)
			break
		}
		if a.InFlight.Limit == 0 {
			a.InFlight.Limit, a.bound = most, ru
		}
		return parts
	}
	parts = append(parts, Part{})
	a := &parts[len(parts)-1] // filled in place, because a copy costs more than the rest
	a.Key, a.RuleKey, a.Label, a.Cost, a.Shadow = ask.Key, ask.Key, ask.label, ask.Cost, ru.Shadow
	a.After, a.InFlight.Limit = ru.Count != nil, most
	a.rule, a.bound = ru, ru
	if ask.Later {
		a.to(postpone)
	}
	return parts
}

package hostlimit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint"
)

// The protocol. Both sides send frames: the length of what follows (4 bytes,
// big-endian), an op (1 byte), the number of the call (4 bytes), and a body.
// A guest begins with a hello, which the owner answers first. The owner answers
// the calls after it in any order. Numbers in bodies are varints.
const (
	version   = 1
	magic     = "stint\x00"
	headerLen = 9
	maxFrame  = 256 << 10 // bytes after the length
	maxReqs   = 256       // requests in a call
	maxLabel  = 1 << 10
	maxID     = 512
)

// op says what a frame is.
type op uint8

const (
	opHello op = iota + 1
	opTogether
	opEach
	opRefund
	opBucket
	opBuckets
	opHold
	opReset
	opReserve
	opDelay
	opCancel
	opWait
	opAbort // ends the Wait of the same number; gets no reply
	opFlush
	opStats
	opHealth
	opSnapshot
	opPing
	opHeld

	opReply // the last frame of a call
	opPart  // of a reply: more follows
	opBye   // the owner closes: calls that come now are not carried out
)

// The first byte of a reply.
const (
	replyOK      = iota
	replyError   // kinds of the error, and its text
	replyNotDone // the owner closes, and nothing was done
)

var errMessage = errors.New("hostlimit: malformed message")

// appendFrame appends a frame whose body f appends.
func appendFrame(b []byte, o op, id uint32, f func([]byte) []byte) []byte {
	begin := len(b)
	b = append(b, 0, 0, 0, 0, byte(o))
	b = binary.BigEndian.AppendUint32(b, id)
	if f != nil {
		b = f(b)
	}
	binary.BigEndian.PutUint32(b[begin:], uint32(len(b)-begin-4))
	return b
}

// body reads the body of a frame. After a malformed value all reads return zero.
type body struct {
	b   []byte
	bad bool
}

func (r *body) fail() { r.b, r.bad = nil, true }

func (r *body) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *body) int() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

// uint reads a number up to most.
func (r *body) uint(most uint64) uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > most {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *body) bytes(most uint64) []byte {
	n := r.uint(most)
	if uint64(len(r.b)) < n {
		r.fail()
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

// end returns an error if something was malformed or is left over.
func (r *body) end() error {
	if r.bad || len(r.b) > 0 {
		return errMessage
	}
	return nil
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendKey(b []byte, key stint.Key) []byte {
	b = binary.AppendUvarint(b, uint64(key.Name))
	return appendBytes(b, key.ID)
}

func (r *body) key() stint.Key {
	name := r.uint(math.MaxUint16)
	return stint.Key{Name: stint.Name(name), ID: string(r.bytes(maxID))}
}

func appendLimit(b []byte, l stint.Limit) []byte {
	b = binary.AppendVarint(b, l.Burst)
	b = binary.AppendVarint(b, l.Count)
	b = binary.AppendVarint(b, int64(l.Period))
	b = binary.AppendVarint(b, l.Queue)
	return append(b, byte(l.Durability))
}

func (r *body) limit() (l stint.Limit) {
	l.Burst, l.Count, l.Period, l.Queue = r.int(), r.int(), time.Duration(r.int()), r.int()
	l.Durability = stint.Durability(r.byte())
	return l
}

const (
	requestMode  = 3 // in the first byte of a request
	requestLimit = 4 // a limit follows
)

func appendRequest(b []byte, q *stint.Request) []byte {
	flags := byte(q.Mode) & requestMode
	if q.Limit != (stint.Limit{}) {
		flags |= requestLimit
	}
	b = appendKey(append(b, flags), q.Key)
	b = binary.AppendVarint(b, q.Cost)
	if flags&requestLimit != 0 {
		b = appendLimit(b, q.Limit)
	}
	return b
}

func (r *body) request() (q stint.Request) {
	flags := r.byte()
	q.Mode = stint.Mode(flags & requestMode)
	q.Key = r.key()
	q.Cost = r.int()
	if flags&requestLimit != 0 {
		q.Limit = r.limit()
	}
	if flags > requestMode|requestLimit || q.Mode > stint.SpendOnly {
		r.fail()
	}
	return q
}

func appendRequests(b []byte, reqs []stint.Request) []byte {
	b = binary.AppendUvarint(b, uint64(len(reqs)))
	for i := range reqs {
		b = appendRequest(b, &reqs[i])
	}
	return b
}

// requests reads requests and appends them to reqs.
func (r *body) requests(reqs []stint.Request) []stint.Request {
	for range r.uint(maxReqs) {
		if r.bad {
			break
		}
		reqs = append(reqs, r.request())
	}
	return reqs
}

// The first byte of a decision.
const (
	decisionAllowed  = 1
	decisionNoKey    = 2         // no request took part
	decisionGiven    = 4         // the request brought the limit
	decisionLimit    = 8         // the limit follows
	decisionMistaken = ^byte(15) // bits that no decision has
)

// appendDecision appends the decision on one of the requests.
func appendDecision(b []byte, d *stint.Decision, reqs []stint.Request) []byte {
	flags, index := byte(decisionNoKey), 0
	for i := range reqs {
		if reqs[i].Key == d.Key {
			flags, index = 0, i
			break
		}
	}
	if d.Allowed {
		flags |= decisionAllowed
	}
	switch {
	case d.Limit == (stint.Limit{}):
	case flags&decisionNoKey == 0 && reqs[index].Limit == d.Limit:
		flags |= decisionGiven
	default:
		flags |= decisionLimit
	}
	b = binary.AppendUvarint(append(b, flags), uint64(index))
	b = binary.AppendVarint(b, d.Remaining)
	b = binary.AppendVarint(b, int64(d.RetryAfter))
	b = binary.AppendVarint(b, int64(d.ResetAfter))
	if flags&decisionLimit != 0 {
		b = appendLimit(b, d.Limit)
	}
	return b
}

func (r *body) decision(reqs []stint.Request) (d stint.Decision) {
	flags := r.byte()
	index := r.uint(maxReqs)
	d.Allowed = flags&decisionAllowed != 0
	d.Remaining, d.RetryAfter, d.ResetAfter = r.int(), time.Duration(r.int()), time.Duration(r.int())
	switch hasKey := flags&decisionNoKey == 0; {
	case flags&decisionMistaken != 0 || hasKey && index >= uint64(len(reqs)) || d.Allowed && d.RetryAfter != 0:
		r.fail()
	case hasKey:
		d.Key = reqs[index].Key
		if flags&decisionGiven != 0 {
			d.Limit = reqs[index].Limit
		}
	}
	if flags&decisionLimit != 0 {
		d.Limit = r.limit()
	}
	if r.bad {
		return stint.Decision{} // which denies
	}
	return d
}

func appendBucket(b []byte, k *stint.Bucket) []byte {
	b = appendLimit(appendKey(b, k.Key), k.Limit)
	b = binary.AppendVarint(b, k.Remaining)
	b = binary.AppendVarint(b, int64(k.ResetAfter))
	held := int64(0)
	if !k.HeldUntil.IsZero() {
		held = k.HeldUntil.UnixNano()
	}
	return binary.AppendVarint(b, held)
}

func (r *body) bucket() (k stint.Bucket) {
	k.Key, k.Limit = r.key(), r.limit()
	k.Remaining, k.ResetAfter = r.int(), time.Duration(r.int())
	if held := r.int(); held != 0 {
		k.HeldUntil = time.Unix(0, held)
	}
	return k
}

func appendHeld(b []byte, h *stint.Held) []byte {
	until := int64(0)
	if !h.Until.IsZero() {
		until = h.Until.UnixNano()
	}
	return binary.AppendVarint(binary.AppendVarint(appendKey(b, h.Key), until), int64(h.Waiting))
}

func (r *body) held() (h stint.Held) {
	h.Key = r.key()
	if until := r.int(); until != 0 {
		h.Until = time.Unix(0, until)
	}
	h.Waiting = int(r.int())
	return h
}

// kinds are the errors that keep their identity on the way to a guest, in the
// order of their bits in the protocol.
var kinds = [...]error{
	stint.ErrClosed, stint.ErrUnknownName, stint.ErrInvalidID, stint.ErrNegativeCost, stint.ErrCostOverBurst,
	stint.ErrDuplicateKey,
	stint.ErrQueueFull, stint.ErrBlocked, stint.ErrNotDurable, stint.ErrFull, stint.ErrGone, stint.ErrCorrupt,
	stint.ErrFormat,
	stint.ErrLocked, stint.ErrNameMismatch, context.DeadlineExceeded, context.Canceled, ErrRefused, ErrNoOwner,
	ErrNoAnswer,
}

const kindConfig = 1 << len(kinds)

func appendError(b []byte, err error) []byte {
	bits := uint64(0)
	for i, kind := range kinds {
		if errors.Is(err, kind) {
			bits |= 1 << i
		}
	}
	if config := (*stint.ConfigError)(nil); errors.As(err, &config) {
		bits |= kindConfig
	}
	b = binary.AppendUvarint(b, bits)
	text := err.Error()
	return appendBytes(b, text[:min(len(text), 4<<10)])
}

// remoteError is an error of the owner.
type remoteError struct {
	text  string
	kinds []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.kinds }

func (r *body) error() error {
	bits := r.uint(1<<(len(kinds)+1) - 1)
	e := &remoteError{text: string(r.bytes(4 << 10))}
	for i, kind := range kinds {
		if bits&(1<<i) != 0 {
			e.kinds = append(e.kinds, kind)
		}
	}
	if bits&kindConfig != 0 {
		e.kinds = append(e.kinds, &stint.ConfigError{Err: errors.New(e.text)})
	}
	return e
}

// named is a declared Name.
type named struct {
	name   stint.Name
	label  string
	shared bool // its id is empty
}

func namedOf(names stint.Names) (all []named) {
	for name, spec := range names {
		all = append(all, named{name, spec.Label, spec.ID == stint.Shared})
	}
	return all
}

func appendNames(b []byte, names []named) []byte {
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, n := range names {
		shared := byte(0)
		if n.shared {
			shared = 1
		}
		b = appendBytes(append(binary.AppendUvarint(b, uint64(n.name)), shared), n.label)
	}
	return b
}

func (r *body) names() (names []named) {
	for range r.uint(math.MaxUint16) {
		n := named{name: stint.Name(r.uint(math.MaxUint16)), shared: r.byte() == 1, label: string(r.bytes(maxLabel))}
		if r.bad {
			return nil
		}
		names = append(names, n)
	}
	return names
}

// mismatch returns an ErrNameMismatch if two sets of Names disagree.
func mismatch(theirs []named, ours stint.Names) error {
	numbers := make(map[string]stint.Name, len(ours))
	for name, spec := range ours {
		numbers[spec.Label] = name
	}
	for _, n := range theirs {
		spec, declared := ours[n.name]
		if declared && spec.Label != n.label {
			return fmt.Errorf("%w: %d is %q in one process and %q in another", stint.ErrNameMismatch, n.name, n.label,
				spec.Label)
		}
		if number, taken := numbers[n.label]; taken && number != n.name {
			return fmt.Errorf("%w: %q is %d in one process and %d in another", stint.ErrNameMismatch, n.label, n.name, number)
		}
		if declared && (spec.ID == stint.Shared) != n.shared {
			return fmt.Errorf("%w: %q has a shared bucket in one process only", stint.ErrNameMismatch, n.label)
		}
	}
	return nil
}

package wire

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

const (
	// MaxRequests is the largest number of requests in a call.
	MaxRequests = 256

	// MaxID is the largest number of bytes in an id.
	MaxID = 512

	// MaxLabel is the largest number of bytes in a label.
	MaxLabel = 1 << 10

	maxLimit = 200 // bytes of a limit's text
)

// Body reads the body of a frame. After a malformed value all reads return zero.
type Body struct {
	b   []byte
	bad bool

	zone  error         // of a limit: ErrZone
	zones map[int]error // the same by request
}

// NewBody returns a Body that reads b.
func NewBody(b []byte) *Body { return &Body{b: b} }

func (r *Body) fail() { r.b, r.bad = nil, true }

// Rest returns what was not read.
func (r *Body) Rest() []byte { return r.b }

// Byte reads a byte.
func (r *Body) Byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

// Int reads a number.
func (r *Body) Int() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

// uint reads a number up to most.
func (r *Body) uint(most uint64) uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > most {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *Body) bytes(most uint64) []byte {
	n := r.uint(most)
	if uint64(len(r.b)) < n {
		r.fail()
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

// End returns ErrMessage if something was malformed or is left over.
func (r *Body) End() error {
	if r.bad || len(r.b) > 0 {
		return ErrMessage
	}
	return nil
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendBool(b []byte, is bool) []byte {
	if is {
		return append(b, 1)
	}
	return append(b, 0)
}

func (r *Body) bool() bool { return r.uint(1) == 1 }

// appendTime appends a time, or the zero Time. Times outside the range of the
// clock count as its ends.
func appendTime(b []byte, t time.Time) []byte {
	at := int64(0)
	switch year := t.Year(); { // UnixNano overflows before 1678 and after 2262
	case t.IsZero():
	case year < 1970:
		at = 1
	case year > 2200:
		at = math.MaxInt64
	default:
		at = max(1, t.UnixNano())
	}
	return binary.AppendVarint(b, at)
}

func (r *Body) time() time.Time {
	if at := r.Int(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

func appendKey(b []byte, key stint.Key) []byte {
	b = binary.AppendUvarint(b, uint64(key.Name))
	return appendBytes(b, key.ID)
}

func (r *Body) key() stint.Key {
	name := r.uint(math.MaxUint16)
	return stint.Key{Name: stint.Name(name), ID: string(r.bytes(MaxID))}
}

// A limit begins with its form.
const (
	formNumbers = iota
	formUnlimited
	formBlocked
	formCalendar // the text and the fingerprint of the periods come last
)

func appendLimit(b []byte, l stint.Limit) []byte {
	form := byte(formNumbers)
	switch {
	case l.IsUnlimited():
		form = formUnlimited
	case l.IsBlocked():
		form = formBlocked
	case l.FollowsCalendar():
		form = formCalendar
	}
	b = append(b, form, byte(l.Durability))
	b = binary.AppendVarint(b, l.Burst)
	b = binary.AppendVarint(b, l.Count)
	b = binary.AppendVarint(b, int64(l.Period))
	b = binary.AppendVarint(b, l.Queue)
	if form == formCalendar {
		b = binary.AppendUvarint(appendBytes(b, l.String()), fingerprint(l))
	}
	return b
}

// limit reads a limit. A quota whose zone this process does not have, or has
// with other clocks, is not a valid limit, and the call is ErrZone.
func (r *Body) limit() (l stint.Limit) {
	form := r.Byte()
	switch form {
	case formUnlimited:
		l = stint.Unlimited
	case formBlocked:
		l = stint.Blocked
	}
	l.Durability = stint.Durability(r.Byte())
	l.Burst, l.Count, l.Period, l.Queue = r.Int(), r.Int(), time.Duration(r.Int()), r.Int()
	if form != formCalendar {
		return l
	}
	text, print := string(r.bytes(maxLimit)), r.uint(math.MaxUint64)
	quota, err := calendars.parse(text)
	if err == nil && fingerprint(quota) != print {
		err = fmt.Errorf("the periods of %s differ", text)
	}
	if err != nil {
		r.zone = fmt.Errorf("%w: %w", ErrZone, err)
		return l
	}
	// What the text does not have may be mistaken: then the owner reports it.
	quota.Burst, quota.Count, quota.Period = l.Burst, l.Count, l.Period
	quota.Queue, quota.Durability = l.Queue, l.Durability
	return quota
}

// A process keeps each calendar that it has met, and other processes can name as
// many as there are starts of a day. So it accepts no more than mostCalendars of
// them.
const mostCalendars = 10_000

// calendars has the calendars that other processes have sent.
var calendars sentCalendars

type sentCalendars struct {
	mu   sync.Mutex
	sent map[string]bool // by its part of the limit's text
}

// parse reads a quota that follows the calendar.
func (s *sentCalendars) parse(text string) (stint.Limit, error) {
	_, calendar, _ := strings.Cut(text, "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.sent[calendar] && len(s.sent) >= mostCalendars {
		return stint.Limit{}, fmt.Errorf("%s is one of more than %d calendars", text, mostCalendars)
	}
	quota, err := stint.ParseLimit(text)
	if err == nil && !s.sent[calendar] {
		if s.sent == nil {
			s.sent = make(map[string]bool)
		}
		s.sent[calendar] = true
	}
	return quota, err
}

// fingerprints has the fingerprint of each calendar, by a Limit without numbers.
var fingerprints sync.Map

// fingerprint returns a number that differs if two processes have different
// clocks for a zone: a hash of some periods of the quota.
func fingerprint(l stint.Limit) uint64 {
	l.Burst, l.Count, l.Queue, l.Durability = 0, 0, 0, 0
	if print, ok := fingerprints.Load(l); ok {
		return print.(uint64)
	}
	h := fnv.New64a()
	for month := range 24 {
		_, end := l.PeriodAt(time.Date(2026, time.Month(1+month), 15, 12, 0, 0, 0, time.UTC))
		fmt.Fprintln(h, end.Unix())
	}
	fingerprints.Store(l, h.Sum64())
	return h.Sum64()
}

// The first byte of a request.
const (
	requestMode  = 3
	requestLimit = 4 // a limit follows
	requestSpent = 8 // the instant of the spend follows
	requestBits  = 15
)

func appendRequest(b []byte, q *stint.Request) []byte {
	flags := byte(q.Mode) & requestMode
	if q.Limit != (stint.Limit{}) {
		flags |= requestLimit
	}
	if !q.Spent.IsZero() {
		flags |= requestSpent
	}
	b = appendKey(append(b, flags), q.Key)
	b = binary.AppendVarint(b, q.Cost)
	if flags&requestLimit != 0 {
		b = appendLimit(b, q.Limit)
	}
	if flags&requestSpent != 0 {
		b = appendTime(b, q.Spent)
	}
	return b
}

func (r *Body) request() (q stint.Request) {
	flags := r.Byte()
	q.Mode = stint.Mode(flags & requestMode)
	q.Key = r.key()
	q.Cost = r.Int()
	if flags&requestLimit != 0 {
		q.Limit = r.limit()
	}
	if flags&requestSpent != 0 {
		q.Spent = r.time()
	}
	if flags > requestBits || q.Mode > stint.UpTo {
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

func (r *Body) requests(space []stint.Request) []stint.Request {
	n := r.uint(MaxRequests)
	if uint64(len(r.b)) < n { // each has some bytes
		r.fail()
		return nil
	}
	reqs := slices.Grow(space, int(n))
	for i := range n {
		if r.bad {
			return nil
		}
		before := r.zone
		if reqs = append(reqs, r.request()); r.zone != before {
			if r.zones == nil {
				r.zones = make(map[int]error)
			}
			r.zones[int(i)] = r.zone
		}
	}
	return reqs
}

// The first byte of a decision.
const (
	decisionAllowed = 1
	decisionIndex   = 2  // its key is that of a request: the index follows
	decisionKey     = 4  // its key is another one, such as the total of a class: it follows
	decisionGiven   = 8  // the request brought the limit
	decisionLimit   = 16 // the limit follows
	decisionTaken   = 32 // the number of tokens follows that the request took
	decisionBits    = 63
)

// appendDecision appends the decision on one of the requests.
func appendDecision(b []byte, d *stint.Decision, reqs []stint.Request) []byte {
	flags, index := byte(0), -1
	for i := range reqs {
		if reqs[i].Key == d.Key {
			flags, index = decisionIndex, i
			break
		}
	}
	if index < 0 && d.Key != (stint.Key{}) {
		flags = decisionKey
	}
	if d.Allowed {
		flags |= decisionAllowed
	}
	switch {
	case d.Limit == (stint.Limit{}):
	case index >= 0 && reqs[index].Limit == d.Limit:
		flags |= decisionGiven
	default:
		flags |= decisionLimit
	}
	if d.Taken != 0 {
		flags |= decisionTaken
	}
	b = append(b, flags)
	switch {
	case index >= 0:
		b = binary.AppendUvarint(b, uint64(index))
	case flags&decisionKey != 0:
		b = appendKey(b, d.Key)
	}
	b = binary.AppendVarint(b, d.Remaining)
	b = binary.AppendVarint(b, int64(d.RetryAfter))
	b = binary.AppendVarint(b, int64(d.ResetAfter))
	if flags&decisionLimit != 0 {
		b = appendLimit(b, d.Limit)
	}
	if flags&decisionTaken != 0 {
		b = binary.AppendVarint(b, d.Taken)
	}
	return b
}

func (r *Body) decision(reqs []stint.Request) (d stint.Decision) {
	flags := r.Byte()
	if flags > decisionBits {
		r.fail()
	}
	d.Allowed = flags&decisionAllowed != 0
	switch flags & (decisionIndex | decisionKey) {
	case decisionIndex:
		index := r.uint(MaxRequests)
		if index >= uint64(len(reqs)) {
			r.fail()
			break
		}
		d.Key = reqs[index].Key
		if flags&decisionGiven != 0 {
			d.Limit = reqs[index].Limit
		}
	case decisionKey:
		d.Key = r.key()
	}
	d.Remaining, d.RetryAfter, d.ResetAfter = r.Int(), time.Duration(r.Int()), time.Duration(r.Int())
	if flags&decisionLimit != 0 {
		d.Limit = r.limit()
	}
	if flags&decisionTaken != 0 {
		d.Taken = r.Int()
	}
	if d.Allowed && d.RetryAfter != 0 {
		r.fail()
	}
	if r.bad {
		return stint.Decision{} // which denies
	}
	return d
}

// AppendBucket appends a bucket.
func AppendBucket(b []byte, k *stint.Bucket) []byte {
	b = appendLimit(appendKey(b, k.Key), k.Limit)
	b = binary.AppendVarint(b, k.Remaining)
	b = binary.AppendVarint(b, int64(k.ResetAfter))
	return appendTime(b, k.HeldUntil)
}

func (r *Body) bucket() (k stint.Bucket) {
	k.Key, k.Limit = r.key(), r.limit()
	k.Remaining, k.ResetAfter = r.Int(), time.Duration(r.Int())
	k.HeldUntil = r.time()
	return k
}

// AppendHeld appends a bucket that is held or has a queue.
func AppendHeld(b []byte, h *stint.Held) []byte {
	return binary.AppendVarint(appendTime(appendKey(b, h.Key), h.Until), int64(h.Waiting))
}

func (r *Body) held() stint.Held {
	return stint.Held{Key: r.key(), Until: r.time(), Waiting: int(r.Int())}
}

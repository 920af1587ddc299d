package wire

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
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

// Body is the body of a frame, which is written or read. The method of a value does
// both, so that there is one list of what a message has: it appends what the variable
// has, or sets the variable, which is zero before that. After a malformed value all
// others are read as zero.
type Body struct {
	b      []byte // what was written, or was not read yet
	writes bool
	bad    bool
	zone   error // of the last limit that could not be read: ErrZone
}

// NewBody returns a Body that reads b.
func NewBody(b []byte) *Body { return &Body{b: b} }

// Append appends what f writes.
func Append(b []byte, f func(*Body)) []byte {
	w := Body{b: b, writes: true}
	f(&w)
	return w.b
}

func (b *Body) fail() { b.b, b.bad = nil, true }

// Rest returns what was not read.
func (b *Body) Rest() []byte { return b.b }

// End returns ErrMessage if something was malformed or is left over.
func (b *Body) End() error {
	if b.bad || !b.writes && len(b.b) > 0 {
		return ErrMessage
	}
	return nil
}

// signed writes or reads numbers.
func signed[T ~int | ~int64](b *Body, all ...*T) {
	for _, n := range all {
		if b.writes {
			b.b = binary.AppendVarint(b.b, int64(*n))
			continue
		}
		v, size := binary.Varint(b.b)
		if *n = T(v); size <= 0 {
			b.fail()
			continue
		}
		b.b = b.b[size:]
	}
}

// unsigned writes a number, or reads one up to most.
func unsigned[T ~uint8 | ~uint16 | ~uint64](b *Body, n *T, most T) {
	if b.writes {
		b.b = binary.AppendUvarint(b.b, uint64(*n))
		return
	}
	v, size := binary.Uvarint(b.b)
	if size <= 0 || v > uint64(most) {
		*n = 0
		b.fail()
		return
	}
	*n = T(v)
	b.b = b.b[size:]
}

func (b *Body) bools(all ...*bool) {
	for _, is := range all {
		bit := uint8(0)
		if *is {
			bit = 1
		}
		if unsigned(b, &bit, 1); !b.writes {
			*is = bit == 1
		}
	}
}

// text writes a text, or reads one of at most so many bytes.
func (b *Body) text(s *string, most uint64) {
	n := uint64(len(*s))
	unsigned(b, &n, most)
	switch {
	case b.writes:
		b.b = append(b.b, *s...)
	case uint64(len(b.b)) < n:
		b.fail()
	default:
		*s, b.b = string(b.b[:n]), b.b[n:]
	}
}

// Raw writes bytes as they are.
func (b *Body) Raw(p []byte) { b.b = append(b.b, p...) }

// time writes or reads a time, or the zero Time. Times outside the range of the
// clock count as its ends.
func (b *Body) time(t *time.Time) {
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
	if signed(b, &at); !b.writes && at != 0 {
		*t = time.Unix(0, at)
	}
}

func (b *Body) name(name *stint.Name) { unsigned(b, name, math.MaxUint16) }

func (b *Body) key(key *stint.Key) {
	b.name(&key.Name)
	b.text(&key.ID, MaxID)
}

// list writes items, or reads from least to most of them.
func list[T any](b *Body, all *[]T, least, most uint64, item func(*Body, *T)) {
	n := uint64(len(*all))
	if unsigned(b, &n, most); !b.writes {
		*all = (*all)[:0]
	}
	if n < least {
		b.fail()
	}
	for i := range n {
		if b.bad {
			return
		}
		if !b.writes {
			*all = append(*all, *new(T))
		}
		item(b, &(*all)[i])
	}
}

// A limit begins with its form.
const (
	formNone = iota // the zero Limit: nothing else follows
	formNumbers
	formUnlimited
	formBlocked
	formCalendar // the text and the fingerprint of the periods come last
)

func formOf(l *stint.Limit) uint8 {
	switch {
	case *l == (stint.Limit{}):
		return formNone
	case *l == stint.Unlimited:
		return formUnlimited
	case *l == stint.Blocked:
		return formBlocked
	case l.FollowsCalendar():
		return formCalendar
	}
	return formNumbers
}

// limit writes or reads a limit. A quota whose zone this process does not have, or
// has with other clocks, is not a valid limit, and the call is ErrZone.
func (b *Body) limit(l *stint.Limit) {
	form := formOf(l)
	unsigned(b, &form, formCalendar)
	switch {
	case form == formNone:
		return
	case b.writes:
	case form == formUnlimited:
		*l = stint.Unlimited
	case form == formBlocked:
		*l = stint.Blocked
	}
	unsigned(b, &l.Durability, math.MaxUint8)
	signed(b, &l.Burst, &l.Count, &l.Queue)
	signed(b, &l.Period)
	if form == formCalendar {
		b.calendar(l)
	}
}

// calendar writes the calendar of a quota, or reads it into the numbers of one.
func (b *Body) calendar(l *stint.Limit) {
	text, print := "", uint64(0)
	if b.writes {
		text, print = l.String(), fingerprint(*l)
	}
	b.text(&text, maxLimit)
	unsigned(b, &print, math.MaxUint64)
	if b.writes {
		return
	}
	quota, err := quotaOf(text)
	if err == nil && fingerprint(quota) != print {
		err = fmt.Errorf("the periods of %s differ", text)
	}
	if err != nil {
		b.zone = fmt.Errorf("%w: %w", ErrZone, err)
		return
	}
	// The numbers may be mistaken: then the owner reports it.
	quota.Burst, quota.Count, quota.Period = l.Burst, l.Count, l.Period
	quota.Queue, quota.Durability = l.Queue, l.Durability
	*l = quota
}

// A process keeps each calendar that it has met, and other processes can name as
// many as there are starts of a day. So it accepts no more than mostCalendars of
// them.
const mostCalendars = 10_000

// quotas has a quota of each calendar that other processes have sent, by the calendar's
// part of its text.
var (
	quotasMu sync.Mutex
	quotas   = make(map[string]stint.Limit)
)

// quotaOf returns a quota of the calendar of a quota with that text.
func quotaOf(text string) (stint.Limit, error) {
	_, calendar, _ := strings.Cut(text, "/")
	quotasMu.Lock()
	defer quotasMu.Unlock()
	if quota, ok := quotas[calendar]; ok {
		return quota, nil
	}
	if len(quotas) >= mostCalendars {
		return stint.Limit{}, fmt.Errorf("%s is one of more than %d calendars", text, mostCalendars)
	}
	quota, err := stint.ParseLimit(text)
	if err == nil {
		quotas[calendar] = quota
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

func (b *Body) request(q *stint.Request) {
	unsigned(b, &q.Mode, stint.UpTo)
	b.key(&q.Key)
	signed(b, &q.Cost, &q.Leave)
	b.limit(&q.Limit)
	b.time(&q.Spent)
}

// decision writes or reads the decision on one of the requests. Instead of the key
// and the limit of a request it has the index of that, from 1.
func (b *Body) decision(d *stint.Decision, reqs []stint.Request) {
	index, given := uint64(0), false
	if !b.writes {
		*d = stint.Decision{}
	}
	for i := 0; b.writes && i < len(reqs) && index == 0; i++ {
		if reqs[i].Key == d.Key {
			index, given = uint64(i)+1, reqs[i].Limit == d.Limit
		}
	}
	unsigned(b, &index, uint64(len(reqs)))
	b.bools(&d.Allowed, &given)
	switch {
	case index == 0:
		b.key(&d.Key)
	case !b.writes:
		d.Key = reqs[index-1].Key
	}
	switch {
	case index == 0 || !given:
		b.limit(&d.Limit)
	case !b.writes:
		d.Limit = reqs[index-1].Limit
	}
	signed(b, &d.Remaining, &d.Taken)
	signed(b, &d.RetryAfter, &d.ResetAfter)
	at := d.At()
	b.time(&at)
	d.SetAt(at)
	if d.Allowed && d.RetryAfter != 0 {
		b.fail()
	}
	if b.bad {
		*d = stint.Decision{} // which denies
	}
}

func (b *Body) bucket(k *stint.Bucket) {
	b.key(&k.Key)
	b.limit(&k.Limit)
	signed(b, &k.Remaining)
	signed(b, &k.ResetAfter)
	b.time(&k.HeldUntil)
}

func (b *Body) held(h *stint.Held) {
	b.key(&h.Key)
	b.time(&h.HeldUntil)
	signed(b, &h.Waiting)
}

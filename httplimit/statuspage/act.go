package statuspage

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/hold"
	"github.com/stint-go/stint/internal/spell"
)

// The actions. Each is the name of a parameter whose value is a bucket's token:
// GET asks whether to do it, POST does it.
const (
	actReset = "reset"
	actHold  = "hold"
	actEnd   = "end"
)

// holdPeriods are the choices of the page. A POST may have any other period in
// the parameter "for".
var holdPeriods = []struct{ Value, Text string }{
	{"15m", "15 minutes"}, {"1h", "1 hour"}, {"24h", "24 hours"}, {"168h", "7 days"}, {"720h", "30 days"},
}

// question asks whether to act on a bucket. The page shows nothing else then,
// and does not reload. In a list that reloads, the rows move, and an operator
// could press a button in the wrong row.
type question struct {
	bucketState
	Action string
	Form   string // proves that the page made the form
}

// asked returns the action that a request names, and its bucket. If asked has
// answered with an error, ok is false. Without an action, action and key are
// zero.
func (p *Page) asked(w http.ResponseWriter, value func(name string) string) (action string, key stint.Key, ok bool) {
	for _, action = range []string{actReset, actHold, actEnd} {
		token := value(action)
		if token == "" {
			continue
		}
		if !p.opts.AllowReset {
			http.Error(w, "This page shows buckets, and does not change them.", http.StatusForbidden)
			return "", key, false
		}
		text, _ := p.unseal("bucket", token)
		number, id, err := spell.ParseKey(text)
		if err != nil {
			http.Error(w, "The page does not know this bucket, perhaps because the program was restarted. "+
				"Go back and choose it again.", http.StatusNotFound)
			return "", key, false
		}
		return action, stint.Name(number).Key(id), true
	}
	return "", key, true
}

// act resets a bucket, holds it, or ends its hold.
func (p *Page) act(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<12)
	action, key, ok := p.asked(w, r.PostFormValue)
	if !ok {
		return
	}
	if !p.ownForm(r) {
		http.Error(w, "This form is over an hour old, or is not from this page. Go back and load the page again.",
			http.StatusForbidden)
		return
	}
	var err error
	switch action {
	case actReset:
		err = p.resets.Reset(key)
	case actEnd:
		err = p.lim.Release(key)
	case actHold:
		period, wrong := time.ParseDuration(r.PostFormValue("for"))
		if wrong != nil || period <= 0 {
			http.Error(w, `Want the length of the hold as the parameter "for", such as for=24h.`, http.StatusBadRequest)
			return
		}
		err = hold.Until(p.lim, key, p.lim.Now().Add(period))
	default:
		http.Error(w, "Nothing to do: want the parameter reset, hold or end.", http.StatusBadRequest)
		return
	}
	if err != nil {
		http.Error(w, "The bucket could not be changed: "+p.errorText(err), http.StatusServiceUnavailable)
		return
	}
	p.sampling.Lock()
	p.made = nil
	p.sampling.Unlock()
	w.Header().Set("Location", cmp.Or(p.bucketID(key).href, "?")) // the state that it has now
	w.WriteHeader(http.StatusSeeOther)
}

// formLife is how long a form can be sent.
const formLife = time.Hour

// newForm returns the text that proves that the page made a form.
func (p *Page) newForm() string { return p.seal("form", p.lim.Now().Format(time.RFC3339)) }

// ownForm reports whether the page itself made the form. Browsers name the site
// that sends a form. Over plain HTTP they only name the origin, which differs
// from the Host if a proxy changes the Host. Then the form must have a text
// that other sites cannot read.
func (p *Page) ownForm(r *http.Request) bool {
	if p.origin.Check(r) == nil {
		return true
	}
	text, _ := p.unseal("form", r.PostFormValue("form"))
	made, err := time.Parse(time.RFC3339, text)
	return err == nil && r.Header.Get("Sec-Fetch-Site") == "" && p.lim.Now().Sub(made) < formLife
}

// bucketID names a bucket: for people, for a POST, and for the search.
type bucketID struct {
	ID    string `json:"id"`
	Token string `json:"token"` // does not reveal the id

	href string // "" if ids are hidden
}

// Href returns the link to the search for the id, or "".
func (b bucketID) Href() string { return b.href }

func (p *Page) bucketID(key stint.Key) bucketID {
	b := bucketID{ID: key.ID, Token: p.seal("bucket", key.String()), href: "?id=" + url.QueryEscape(key.ID)}
	if key.ID == "" {
		b.ID = "everyone"
	}
	if p.opts.HideIDs {
		h := hmac.New(sha256.New, p.secret)
		h.Write([]byte(key.String()))
		b.ID, b.href = "#"+hex.EncodeToString(h.Sum(nil)[:3]), ""
	}
	return b
}

func newSealer() cipher.AEAD {
	var key [32]byte
	rand.Read(key[:]) // never fails
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // a key of 32 bytes is valid
	}
	sealer, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return sealer
}

// seal returns a text that only unseal reads, until the program ends.
func (p *Page) seal(kind, text string) string {
	return base64.RawURLEncoding.EncodeToString(p.sealer.Seal(nil, nil, []byte(text), []byte(kind)))
}

func (p *Page) unseal(kind, sealed string) (text string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return "", false
	}
	b, err = p.sealer.Open(nil, nil, b, []byte(kind))
	return string(b), err == nil
}

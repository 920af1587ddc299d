package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math"
	"net/http"
	"strings"
	"sync"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// call is what the proxy knows of a request.
type call struct {
	prompt int64 // at most so many tokens: a token has at least one byte
	answer int64 // at most so many tokens, of all answers
}

type callKey struct{}

const (
	maxBody       = 1 << 20
	defaultAnswer = 4096 // tokens, if the request does not say how many
)

// readCall reads the body of a request. It asks the API for the usage at the end
// of a stream, and for no longer an answer than the bound.
func readCall(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	c := &call{prompt: int64(len(body)), answer: defaultAnswer}
	if len(body) > 0 {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(body, &fields); err != nil {
			return nil, err
		}
		limit := "max_tokens"
		if _, ok := fields["max_completion_tokens"]; ok {
			limit = "max_completion_tokens"
		}
		if n := int64(0); json.Unmarshal(fields[limit], &n) == nil && n > 0 {
			c.answer = n
		}
		fields[limit], _ = json.Marshal(c.answer)
		if n := int64(0); json.Unmarshal(fields["n"], &n) == nil && n > 1 { // so many answers
			c.answer *= max(1, min(n, math.MaxInt64/2/c.answer))
		}
		if string(fields["stream"]) == "true" {
			fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
		}
		if body, err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r, nil
}

// bound returns how many tokens a request may use.
func bound(r *http.Request) int64 {
	c := r.Context().Value(callKey{}).(*call)
	return c.prompt + c.answer
}

// settleAtEnd settles the cost of a request when its answer has been sent, or
// when the client is gone: ReverseProxy closes the body in both cases.
func settleAtEnd(res *http.Response) error {
	if res.StatusCode >= 400 {
		return nil // Refund returns the tokens
	}
	c := res.Request.Context().Value(callKey{}).(*call)
	res.Body = &usageReader{
		ReadCloser: res.Body,
		stream:     strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"),
		settle: func(total int64, known bool, events int64) {
			if !known { // cut off: a quarter of the bytes, and a token for each event
				total = c.prompt/4 + events
			}
			settle(res.Request, total)
		},
	}
	return nil
}

// settle replaces the bound of both limits.
func settle(r *http.Request, total int64) {
	for _, name := range []stint.Name{perMinute, perMonth} {
		short, err := rules.Settle(r.Context(), name, total)
		if err != nil && !errors.Is(err, rules.ErrSettled) {
			log.Print(err)
		} else if short > 0 {
			log.Printf("limit %d: %d tokens more than there were", name, short)
		}
	}
}

// usageReader passes an answer on, and finds its usage: in the whole answer, or
// in the last event of a stream.
type usageReader struct {
	io.ReadCloser
	stream bool
	settle func(total int64, known bool, events int64)
	once   sync.Once

	line   []byte // of a stream, as far as it has come; or the whole answer
	total  int64
	known  bool
	events int64
}

func (u *usageReader) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	for _, part := range bytes.SplitAfter(p[:n], []byte("\n")) {
		if len(u.line)+len(part) <= maxBody {
			u.line = append(u.line, part...)
		}
		if u.stream && bytes.HasSuffix(part, []byte("\n")) {
			if data, ok := bytes.CutPrefix(u.line, []byte("data:")); ok {
				u.events++
				u.find(data)
			}
			u.line = u.line[:0]
		}
	}
	if err == io.EOF {
		u.end()
	}
	return n, err
}

// find reads the usage of an event or of an answer.
func (u *usageReader) find(data []byte) {
	var answer struct {
		Usage *struct {
			Total int64 `json:"total_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(data, &answer) == nil && answer.Usage != nil && answer.Usage.Total >= 0 {
		u.total, u.known = answer.Usage.Total, true
	}
}

func (u *usageReader) Close() error {
	u.end()
	return u.ReadCloser.Close()
}

func (u *usageReader) end() {
	u.once.Do(func() {
		if !u.stream {
			u.find(u.line)
		}
		u.settle(u.total, u.known, u.events)
	})
}

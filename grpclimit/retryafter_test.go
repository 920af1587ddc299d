package grpclimit_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stint-go/stint/grpclimit"
)

func TestSetRetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0: "", 1: "1", time.Second: "1", time.Second + 1: "2", -time.Second: "1", time.Hour: "3600",
	} {
		h := make(http.Header)
		grpclimit.SetRetryAfter(h, refusing(exhausted, wait))
		assert.Equal(t, want, h.Get("Retry-After"), wait)
	}
	_, found := grpclimit.RetryAfter(context.Canceled)
	assert.False(t, found)
}

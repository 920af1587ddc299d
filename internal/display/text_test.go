package display

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestDuration(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0s"},
		{1, "1ms"},
		{time.Millisecond, "1ms"},
		{time.Millisecond + 1, "2ms"},
		{999*time.Millisecond + 1, "1s"},
		{time.Second, "1s"},
		{19*time.Second + 720*time.Millisecond, "19.8s"},
		{19*time.Second + 999*time.Millisecond, "20s"},
		{59*time.Second + 901*time.Millisecond, "1m"},
		{time.Minute + 1, "1m1s"},
		{14*time.Minute + 24*time.Second, "14m24s"},
		{14*time.Minute + 23*time.Second + 1, "14m24s"},
		{time.Hour - 1, "1h"},
		{2 * time.Hour, "2h"},
		{2*time.Hour + 1, "2h1m"},
		{24 * time.Hour, "24h"},
		{48*time.Hour - 1, "2d"},
		{2*day + 1, "2d1h"},
		{10 * day, "10d"},
		{36525 * day, "36525d"},
		{1<<63 - 1, "106751d23h"}, // the one that nothing can be added to
	} {
		assert.Equal(t, c.want, Duration(c.d), int64(c.d))
	}
}

func TestPrintable(t *testing.T) {
	for id, want := range map[string]string{
		"alice": "alice", "10.0.0.1": "10.0.0.1", "é:b,c": "é:b,c",
		"a b": `"a b"`, "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`,
	} {
		assert.Equal(t, want, Printable(id))
	}
}

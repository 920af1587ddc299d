package replay

import (
	"math/rand/v2"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/httplimit"
)

func TestSyslogLines(t *testing.T) {
	const at, failed = "Mar  1 09:00:01 ", "Failed password for root from 10.0.0.1 port 22 ssh2"
	for _, c := range []struct {
		line, program, message string
		times                  int64
		err                    string
	}{
		{at + "host sshd[1]: " + failed, "sshd", failed, 1, ""},
		{"<38>" + at + "host sshd[1]: " + failed, "sshd", failed, 1, ""},
		{"2026-03-01T09:00:01.123456+00:00 host sshd[1]: " + failed, "sshd", failed, 1, ""},
		{"2026-03-01T09:00:01+0000 host sshd: " + failed, "sshd", failed, 1, ""},
		{at + "host kernel: ", "kernel", "", 1, ""},
		{at + "host app:", "app", "", 1, ""},
		{at + "host sshd[1]: message repeated 5 times: [ " + failed + "]", "sshd", failed, 5, ""},
		{at + "host sshd[1]: message repeated 5 times: [" + failed + "]", "sshd", failed, 5, ""},
		{at + "host sshd[1]: message repeated 1000000 times: [ x]", "sshd", "x", 1e6, ""},
		{at + "host last message repeated 2 times", "cron", "before", 2, ""},
		{at + "host --- last message repeated 1 time ---", "cron", "before", 1, ""},

		{at + "host sshd[1]: message repeated 0 times: [ x]", "", "", 0, "repeated 0 times: want 1"},
		{at + "host sshd[1]: message repeated 1000001 times: [ x]", "", "", 0, "repeated 1000001 times: want 1"},
		{at + "host sshd[1]: message repeated 99999999999999999999 times: [ x]", "", "", 0, "want 1 to 1000000"},
		{at + "host last message repeated 0 times", "", "", 0, "repeated 0 times"},
		{at + "other last message repeated 2 times", "", "", 0, errNoBefore.Error()},
		{at + "host sshd[1]: message repeated 5 times: [ Failed pass", "", "", 0, errRepeat.Error()},
		{at + "host sshd[1]: message repeated 5", "", "", 0, errRepeat.Error()},
		{at + "host sshd[1]: message repeated -5 times: [ x]", "", "", 0, errRepeat.Error()},
		{at + "host sshd[1]", "", "", 0, errSyslog.Error()},
		{at + "host", "", "", 0, errSyslog.Error()},
		{at, "", "", 0, errSyslog.Error()},
		{at[:9], "", "", 0, errSyslog.Error()},
		{"2026-03-01T09:00:01", "", "", 0, errSyslog.Error()},
		{"", "", "", 0, errSyslog.Error()},
	} {
		r, cut := syslog(nil)
		require.NoError(t, cut(r, []byte(at+"host cron[4]: before")))
		err := cut(r, []byte(c.line))
		if c.err != "" {
			assert.ErrorContains(t, err, c.err, c.line)
			continue
		}
		require.NoError(t, err, c.line)
		assert.Equal(t, "host", string(r.field("host")))
		assert.Equal(t, c.program, string(r.field("program")))
		assert.Equal(t, c.message, string(r.message))
		assert.Equal(t, c.times, max(1, r.repeats), c.line)
	}
}

// An IPv6 client has the bucket that httplimit.ByIP gives it.
func TestCanonical(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	spelled := func(text string, bits int) string {
		c := clients{ipv6Bits: bits, note: func(string) {}}
		return string(c.id(nil, []byte(text)))
	}
	for _, bits := range []int{1, 48, 56, 64, 127, 128} {
		key := httplimit.ClientAddress{IPv6Bits: bits}.ByIP(1)
		for range 50 {
			var b [16]byte
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			addr := netip.AddrFrom16(b)
			if random.IntN(3) == 0 {
				addr = netip.AddrFrom4([4]byte(b[:4]))
			}
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = netip.AddrPortFrom(addr, 1).String()
			want, err := key(r)
			require.NoError(t, err)
			assert.Equal(t, want.ID, spelled(addr.String(), bits))
			assert.Equal(t, want.ID, spelled(addr.StringExpanded(), bits))
			assert.Equal(t, want.ID, spelled(r.RemoteAddr, bits))
			assert.Equal(t, want.ID, spelled("192.0.2.9:80, "+r.RemoteAddr, bits))
			assert.Equal(t, want.ID, spelled("/"+r.RemoteAddr, bits))
			if addr.Is6() {
				assert.Equal(t, want.ID, spelled("["+addr.String()+"]", bits))
			}
			if addr.Is4() {
				assert.Equal(t, want.ID, spelled("::ffff:"+addr.String(), bits))
			}
		}
	}
}

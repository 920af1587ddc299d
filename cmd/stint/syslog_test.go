package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sshdLog is a log that is made up, and what is true of it. The truth is noted
// when a line is written; nothing of it is read from the log.
type sshdLog struct {
	random *rand.Rand
	text   strings.Builder

	at       time.Time
	logins   []login // failed ones, one for each request
	repeated [2]int  // lines, requests
	other    int
	bad      int // malformed lines
}

type login struct {
	id string // of the bucket
	at time.Time
}

// client returns an address as sshd may write it, and the bucket that it has.
func (l *sshdLog) client() (written, id string) {
	switch n := l.random.IntN(6); n {
	case 0, 1, 2:
		id = fmt.Sprintf("10.0.0.%d", n)
		return id, id
	case 3:
		return "::ffff:10.0.0.1", "10.0.0.1"
	case 4: // one client with many addresses
		return fmt.Sprintf("2001:db8:0:1:%x::%x", l.random.IntN(1<<16), 1+l.random.IntN(99)), "2001:db8:0:1::/64"
	}
	net := 2 + l.random.IntN(3)
	return fmt.Sprintf("2001:0DB8:0000:000%d:0:0:0:%X", net, 1+l.random.IntN(99)), fmt.Sprintf("2001:db8:0:%d::/64", net)
}

func (l *sshdLog) line(format string, args ...any) {
	fmt.Fprintf(&l.text, "%s host "+format+"\n", append([]any{l.at.Format("Jan _2 15:04:05")}, args...)...)
}

// write adds what happens at one instant.
func (l *sshdLog) write() {
	written, id := l.client()
	user := []string{"root", "invalid user admin", "invalid user x from 9.9.9.9 port 1 ssh2"}[l.random.IntN(3)]
	message := fmt.Sprintf("Failed password for %s from %s port %d ssh2", user, written, l.random.IntN(1<<16))
	fails := func(times int) {
		for range times {
			l.logins = append(l.logins, login{id, l.at})
		}
	}
	repeats := func(times int) {
		fails(times)
		l.repeated[0]++
		l.repeated[1] += times
	}
	n := 1 + l.random.IntN(7)
	switch l.random.IntN(14) {
	case 0, 1: // rsyslog
		l.line("sshd[812]: message repeated %d times: [ %s]", n, message)
		repeats(n)
	case 2: // syslogd
		l.line("sshd[812]: %s", message)
		fails(1)
		l.line("last message repeated %d times", n)
		repeats(n)
	case 3:
		l.line("sshd[812]: message repeated 0 times: [ %s]", message)
		l.bad++
	case 4: // cut in half
		line := fmt.Sprintf("%s host sshd[812]", l.at.Format("Jan _2 15:04:05"))
		l.text.WriteString(line[:1+l.random.IntN(len(line))] + "\n")
		l.bad++
	case 5:
		line := fmt.Sprintf("sshd[812]: message repeated %d times: [ %s", n, message)
		l.line("%s", line[:len("sshd[812]: message repeated ")+l.random.IntN(9)])
		l.bad++
	case 6:
		l.line("CRON[4]: pam_unix(cron:session): session opened for user root")
		l.other++
	case 7:
		l.line("sshd[812]: %s", message[:l.random.IntN(len("Failed password for root"))])
		l.other++
	default:
		l.line("sshd-session[812]: %s", message)
		fails(1)
	}
}

// makeSSHDLog writes a log from December 2023 to March 2024.
func makeSSHDLog() *sshdLog {
	l := &sshdLog{random: rand.New(rand.NewPCG(3, 4)), at: time.Date(2023, 12, 30, 22, 0, 0, 0, time.UTC)}
	for l.at.Before(time.Date(2024, 3, 5, 0, 0, 0, 0, time.UTC)) {
		l.write()
		l.at = l.at.Add(time.Duration(l.random.IntN(20)) * time.Second)
		if l.random.IntN(30) == 0 {
			l.at = l.at.Add(time.Duration(l.random.IntN(36)) * time.Hour)
		}
	}
	return l
}

// Every count of a replay of the log is true.
func TestReplaySyslog(t *testing.T) {
	l := makeSSHDLog()
	log := write(t, "auth.log", l.text.String())
	days := map[string]bool{}
	for _, one := range l.logins {
		days[one.at.Format("2006-01-02")] = true
	}
	require.True(t, days["2023-12-31"] && days["2024-02-29"] && days["2024-03-02"], days)
	require.True(t, l.repeated[0] > 100 && l.bad > 100 && l.other > 100, "%v %d %d", l.repeated, l.bad, l.other)

	for _, text := range []string{"3/1m", "20/1h burst 5", "1/24h"} {
		m, minutes := newModel(t, text), map[int64]int{}
		of, denied := map[string][2]int{}, 0
		var want []bool
		for _, one := range l.logins {
			ok := m.spend(one.id, one.at.UnixNano(), 1)
			want = append(want, ok)
			minutes[one.at.Unix()/60]++
			c := of[one.id]
			if c[1]++; !ok {
				c[0]++
				denied++
			}
			of[one.id] = c
		}
		for _, by := range []string{"ip", "/Failed password for .* from ([^ ]+)/"} {
			got, out := replayed(t, "--limit", text, "--lines", "syslog", "--by", by, "--year", "2023", "--top", "99", log)
			require.Equal(t, want, got, text)
			assert.EqualValues(t, len(want), out["requests"])
			assert.EqualValues(t, len(want)-denied, out["allowed"])
			assert.EqualValues(t, denied, out["denied"])
			assert.EqualValues(t, l.bad, out["malformed"])
			assert.EqualValues(t, l.other, out["other"])
			assert.EqualValues(t, len(of), out["ids"])
			assert.Equal(t, map[string]any{"lines": float64(l.repeated[0]), "requests": float64(l.repeated[1])}, out["repeated"])
			busiest := out["busiest_minute"].(map[string]any)
			start, err := time.Parse(time.RFC3339, busiest["start"].(string))
			require.NoError(t, err)
			assert.EqualValues(t, minutes[start.Unix()/60], busiest["requests"])
			for _, n := range minutes {
				assert.LessOrEqual(t, float64(n), busiest["requests"])
			}
			others := maps.Clone(of)
			for _, top := range out["top_denied"].([]any) {
				top := top.(map[string]any)
				c := of[top["id"].(string)]
				assert.EqualValues(t, c[0], top["denied"])
				assert.EqualValues(t, c[1]-c[0], top["allowed"])
				delete(others, top["id"].(string))
			}
			for id, c := range others {
				assert.Zero(t, c[0], id)
			}
		}
	}
	r := runArgs(t, "replay", "--limit", "3/1m", "--lines", "syslog", "--year", "2023", "--top", "2", log)
	assert.Contains(t, r.stdout, fmt.Sprintf("\nrepeated   %d, in %d lines\n", l.repeated[1], l.repeated[0]))
	_, top, _ := strings.Cut(r.stdout, "\ndenied most\n")
	assert.Equal(t, 2, strings.Count(top, "\n"), r.stdout)
	assert.Regexp(t, `says that a message was repeated 0 times: want 1 to 1000000\n`, r.stderr)
}

// --ipv6-bits says how many bits of an address are one client.
func TestIPv6Bits(t *testing.T) {
	log := write(t, "a.log", accessLines("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "10.0.0.1"))
	for args, ids := range map[string]int{"": 3, "--ipv6-bits 128": 4, "--ipv6-bits 48": 2} {
		_, out := replayed(t, append(strings.Fields(args), "--limit", "1/1h", log)...)
		assert.EqualValues(t, ids, out["ids"], args)
	}
}

func accessLines(hosts ...string) string {
	var b strings.Builder
	for _, host := range hosts {
		fmt.Fprintf(&b, "%s - - [01/Jan/2020:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n", host)
	}
	return b.String()
}

// A line says what its request costs, as JSON, in a group, or by a regular
// expression.
func TestReplayCost(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	limits := []string{"50/1m", "20/1m burst 30"}
	texts := map[string]*strings.Builder{"json": {}, "group": {}, "access": {}, "syslog": {}}
	type request struct {
		at   time.Time
		id   string
		cost int64
	}
	var requests []request
	bad := 0
	add := func(at time.Time, id, cost string) {
		fmt.Fprintf(texts["json"], `{"time":%q,"ip":%q,"usage":{"tokens":%s}}`+"\n", at.Format(time.RFC3339), id, cost)
		fmt.Fprintf(texts["group"], "%s %s n=%s.\n", at.Format(time.RFC3339), id, cost)
		fmt.Fprintf(texts["access"], `%s - - [%s] "GET /?n=%s. HTTP/1.1" 200 1`+"\n", id, at.Format("02/Jan/2006:15:04:05 -0700"), cost)
		fmt.Fprintf(texts["syslog"], "%s host app: from %s n=%s.\n", at.Format(time.RFC3339), id, cost)
	}
	at := time.Date(2024, 2, 29, 23, 50, 0, 0, time.UTC)
	for range 2000 {
		at = at.Add(time.Duration(random.IntN(5)) * time.Second)
		id := fmt.Sprintf("10.0.0.%d", random.IntN(4))
		if random.IntN(20) == 0 {
			wrong := []string{"0", "-3", "1.5", `""`, `"x"`, "1e3", "99999999999999999999"}
			add(at, id, wrong[random.IntN(len(wrong))])
			bad++
			continue
		}
		cost := 1 + random.Int64N(10)
		if random.IntN(50) == 0 {
			cost = 31 + random.Int64N(50) // over one burst, or both
		}
		add(at, id, fmt.Sprint(cost))
		requests = append(requests, request{at, id, cost})
	}
	wants := map[string][]bool{}
	over := map[string]int{}
	for _, text := range limits {
		m := newModel(t, text)
		for _, q := range requests {
			wants[text] = append(wants[text], m.spend(q.id, q.at.UnixNano(), q.cost))
			if q.cost > m.limit.Burst {
				over[text]++
			}
		}
	}
	for format, args := range map[string][]string{
		"json":   {"--lines", "json", "--cost", "usage.tokens"},
		"group":  {"--lines", `^(?P<time>\S+) (?P<ip>\S+) n=(?P<cost>.*)\.$`},
		"access": {"--cost", `/n=(.*)\. HTTP/`},
		"syslog": {"--lines", "syslog", "--cost", `/n=(.*)\.$/`},
	} {
		log := write(t, format+".log", texts[format].String())
		for _, text := range limits {
			got, out := replayed(t, append(args, "--limit", text, log)...)
			require.Equal(t, wants[text], got, format)
			var asked, allowed int64
			for i, q := range requests {
				if asked += q.cost; wants[text][i] {
					allowed += q.cost
				}
			}
			assert.Equal(t, map[string]any{"asked": float64(asked), "allowed": float64(allowed)}, out["tokens"])
			assert.EqualValues(t, len(requests), out["requests"])
			assert.EqualValues(t, bad, out["malformed"], format)
			assert.EqualValues(t, over[text], out["over_burst"])
		}
		got, _ := replayed(t, append(args, "--try", strings.Join(limits, ","), log)...)
		for i := range requests {
			assert.Equal(t, []bool{wants[limits[0]][i], wants[limits[1]][i]}, got[2*i:2*i+2])
		}
		_, out := replayed(t, append(args, "--limit", limits[0], "--and", limits[1], log)...)
		by := out["denied_by"].(map[string]any)
		assert.Equal(t, out["denied"], by[limits[0]].(float64)+by[limits[1]].(float64))
	}
}

func TestReplayCostFlags(t *testing.T) {
	const group = `^(?P<time>\S+) (?P<ip>\S+)(?: x(?P<n>\d+))?$`
	log := write(t, "a.log", "1400000000 a\n1400000000 a x4\n1400000000 a x9\n1400000000 a x0\n")
	r := runArgs(t, "replay", "--limit", "6/1h", "--lines", group, "--cost", "n", log)
	assert.Equal(t, result{0, `requests   3
allowed    2
denied     1
malformed  1
tokens     14, of which 5 were allowed
over burst 1
ids        1

busiest minute  2014-05-13 16:53 UTC: 3 requests, 1 denied

denied most
       1 of 3  a
`, "stint: " + log + ":4: skipped: has the cost \"0\": want a whole number from 1 (--cost n)\n" +
		"stint: requests that cost more than a limit's burst: 1; such requests are always denied\n"}, r)
	noCost := write(t, "b.log", `{"time":1400000000,"ip":"a"}`+"\n")
	fails(t, 2, ":1: skipped: has the cost \"\": want a whole number from 1 (--cost n)\n",
		"replay", "--limit", "6/1h", "--lines", "json", "--cost", "n", noCost)
	for _, c := range [][]string{
		{"--lines", "access", "--cost", "n"}, {"--lines", "syslog", "--cost", "n"}, {"--lines", group, "--cost", "m"}, {"--cost", "/("},
	} {
		fails(t, 2, "--cost", append(c, "replay", "--limit", "6/1h", log)...)
	}
}

// An inferred year is counted and reported.
func TestReplayYears(t *testing.T) {
	line := func(at string) string {
		return at + " host sshd[1]: Failed password for root from 10.0.0.1 port 1 ssh2\n"
	}
	tomorrow := time.Now().UTC().AddDate(0, 0, 1)
	year := tomorrow.Year() - 1 // of the last December 30
	if tomorrow.Month() == 12 && tomorrow.Day() >= 30 {
		year++
	}
	log := write(t, "auth.log", line("Dec 30 23:59:59")+line("Jan  1 00:00:00"))
	r := runArgs(t, "replay", "--limit", "9/1h", "--lines", "syslog", "--json", log)
	assert.Equal(t, map[string]any{"lines": 2.0, "first": float64(year), "last": float64(year + 1)},
		object(t, r.stdout)["no_year"])
	assert.Equal(t, fmt.Sprintf("stint: lines without a year: 2, "+
		"read as %d to %d; --year sets the year of the first line\n",
		year, year+1), r.stderr)
	r = runArgs(t, "replay", "--limit", "9/1h", "--lines", "syslog", "--json", "--year", "2023", log)
	assert.Empty(t, r.stderr)
	assert.NotContains(t, r.stdout, "no_year")

	// A day that the year lacks does not become another day.
	log = write(t, "auth.log", line("Feb 28 23:59:59")+line("Feb 29 00:00:00")+line("Mar  1 00:00:00"))
	for year, malformed := range map[string]int{"2023": 1, "2024": 0} {
		_, out := replayed(t, "--limit", "9/1h", "--lines", "syslog", "--year", year, log)
		assert.EqualValues(t, malformed, out["malformed"], year)
		assert.EqualValues(t, 3-malformed, out["requests"], year)
	}
	log = write(t, "auth.log", line("Feb 29 00:00:00"))
	const noDay = ":1: skipped: has February 29 in a year without that day: give the year of the first line with --year\n"
	fails(t, 2, noDay, "replay", "--limit", "9/1h", "--lines", "syslog", "--year", "2023", log)
}

// A last line without an end is reported, and read as far as it goes.
func TestReplayUnendedLine(t *testing.T) {
	log := write(t, "a.log", strings.TrimSuffix(accessLines("a", "b"), "\n"))
	r := runArgs(t, "replay", "--limit", "1/1h", "--json", log)
	assert.EqualValues(t, 2, object(t, r.stdout)["requests"])
	assert.Equal(t, "stint: "+log+":2: the last line has no line feed: it may be cut off\n", r.stderr)
}

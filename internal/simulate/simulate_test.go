package simulate

import (
	"encoding/xml"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/modeltest"
)

// The picture is XML, and each line ends at its number on the axis.
func TestSVG(t *testing.T) {
	s := simulateLoad(t, "300/1s for 2s")
	s.title, s.limits[0].name = `<"&'>`, "a name that is longer than there is room for"
	svg := string(s.SVG())
	texts := []string{}
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := dec.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, string(text))
		}
	}
	assert.Contains(t, texts, `<"&'>`)
	assert.Contains(t, texts, "400  a name that is lo…")
	assert.Contains(t, texts, "200  leaky bucket")
	assert.Contains(t, svg, "prefers-color-scheme: dark")

	ticks := map[int]float64{} // the y of each number on the axis
	tick := regexp.MustCompile(`d="M64 ([0-9.]+)H564"/><text class="tick"[^>]*>([0-9]+)<`)
	for _, m := range tick.FindAllStringSubmatch(svg, -1) {
		n, _ := strconv.Atoi(m[2])
		ticks[n], _ = strconv.ParseFloat(m[1], 64)
	}
	for class, n := range map[string]int{"line asked": 600, "line c0": 400, "line c1": 200} {
		m := regexp.MustCompile(`class="` + class + `" d="M64 ([0-9.]+)[^"]*V([0-9.]+)H564"`).FindStringSubmatch(svg)
		require.NotNil(t, m, class)
		assert.Equal(t, m[1], strconv.FormatFloat(ticks[0], 'f', 1, 64), class)
		assert.Equal(t, m[2], strconv.FormatFloat(ticks[n], 'f', 1, 64), class)
	}
	for _, loads := range [][]string{{"1 at once"}, {"7 at once after 5s"}, {"1000000 in 1s"},
		{"1 in 1000w", "1 in 1000w"}, {"3 in 1ns"}} {
		s := simulateLoad(t, loads...)
		assert.NoError(t, xml.Unmarshal(s.SVG(), new(struct{ XMLName xml.Name })), loads)
		assert.NotEmpty(t, s.Text(0))
	}
}

// simulateLoad returns what two buckets do to a load.
func simulateLoad(t *testing.T, loads ...string) *Simulation {
	t.Helper()
	limits := []string{"token bucket=100/1s burst 200", "leaky bucket=100/1s burst 1"}
	s, err := New(&Scenario{Limits: limits, Load: loads})
	require.NoError(t, err)
	require.NoError(t, s.Run())
	return s
}

// The experiments of "Rate limiting: token bucket, leaky bucket", with its
// figures.
func TestSimulateSource(t *testing.T) {
	for _, c := range []struct {
		load              string
		token, leaky, all int64
		nearest           time.Duration // of the leaky bucket
	}{
		{"200 in 100ms after 5s idle", 200, 10, 200, 452261},
		{"300/1s for 2s", 400, 200, 600, 3322203},
		{"600 in 2s", 400, 200, 600, 3322203},
		// The 400th token comes back at 2s, after the last request. Three steps
		// are less than 10ms.
		{"600 every 3333333ns", 399, 150, 600, 1},
		{"600 every 3333334ns", 399, 200, 600, 3333332},
		{"300 at once", 200, 1, 300, 10 * time.Millisecond},
	} {
		s := simulateLoad(t, c.load)
		assert.EqualValues(t, c.all, len(s.requests), c.load)
		assert.Equal(t, c.token, s.limits[0].allowed, c.load)
		assert.Equal(t, c.leaky, s.limits[1].allowed, c.load)
		assert.Equal(t, c.nearest, s.limits[1].nearestMiss, c.load)
	}
}

// The simulation decides as the model does.
func TestSimulateAgainstModel(t *testing.T) {
	s := simulateLoad(t, "50 in 77ms", "300/1s for 3s after 123ms", "9 at once", "70 every 13ms after 1s idle")
	require.Len(t, s.requests, 50+900+9+70)
	for _, l := range s.limits {
		m := modeltest.NewTokens(l.limit.Burst, l.limit.Count, int64(l.limit.Period))
		denied := 0
		for i, at := range s.requests {
			want := m.Spend(at, 1, 0) == 0
			require.Equal(t, want, l.admitted[i], "%s: request %d", l.name, i+1)
			if !want {
				denied++
			}
		}
		assert.NotZero(t, denied)
	}
}

func TestLoads(t *testing.T) {
	times := func(loads ...string) ([]int64, int64) {
		s := &Simulation{}
		require.NoError(t, s.add(loads), loads)
		return s.requests, s.end
	}
	got, end := times("4 in 10ns", "2 every 5ns after 1us idle", "2 at once",
		"1000000000/1s for 3ns after 90ns", "1 in 1d")
	assert.Equal(t, []int64{0, 3, 6, 10, 1010, 1015, 1020, 1020, 1110, 1111, 1113, 1113}, got)
	assert.Equal(t, 1113+int64(24*time.Hour), end)
	got, _ = times("1000000 in 1w")
	want := new(big.Int).Mul(big.NewInt(999_998), big.NewInt(int64(7*24*time.Hour)))
	assert.Equal(t, want.Div(want, big.NewInt(999_999)).Int64(), got[999_998])

	for _, load := range []string{
		"", "200", "200 in", "200 in soon", "0 in 1s", "-1 in 1s", "1 in 0s", "1 in 1s after", "1 in 1s after x",
		"1.5 in 1s", "200 in 100ms idle", "300/m for 2s", "300/1s", "0/1s for 2s", "1/1h for 1s", "1 every 0s",
		"1000001 at once", "9223372036854775807 every 1h", "1000 every 9223372036854775807ns",
		"9223372036854775807/1ns for 100w", "1 in 1s after 100000w", "99999999999999999999 at once", "1 in 2609w",
		"1 in 50w after 2600w", "2 every 1305w", "1000000 every 1w", "1 in 5200w after 5200w",
	} {
		err := (&Simulation{}).add([]string{load})
		assert.ErrorContains(t, err, fmt.Sprintf("load %q: ", load))
	}
	for _, more := range []string{"1 at once", "9223372036854775807 at once", "2600 every 1w"} {
		err := (&Simulation{}).add([]string{"1000000 in 1w", more})
		assert.ErrorContains(t, err, fmt.Sprintf("load %q: ", more))
	}
	got, end = times("3 every 800w")
	assert.Equal(t, []int64{0, end / 3, end / 3 * 2}, got)
	assert.Equal(t, 2400*7*24*int64(time.Hour), end)
}

package caddylimit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/stretchr/testify/require"
)

// adapt returns the configuration of a Caddyfile.
func adapt(t *testing.T, text string) (map[string]any, error) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, err
	}
	var parsed map[string]any
	require.NoError(t, json.Unmarshal(config, &parsed))
	return parsed["apps"].(map[string]any), nil
}

// Y5: every subdirective is in the JSON.
func TestAdapt(t *testing.T) {
	apps, err := adapt(t, `{
	stint {
		file /var/lib/stint/limits.db
	}
}
example.com {
	stint {
		zone logins {
			match {
				path /login
			}
			limit 5/15m
			count_status 401 403
			lock_out 15m
		}
		zone api {
			key {header.X-Api-Key}
			ipv4_prefix 24
			ipv6_prefix 56
			limit 100/1m burst 20
			durability leased
			refund_status 500 502
			in_flight 8
			leave 20
			override alice 600/1m
			override bob unlimited
			overrides plans.yml more.yml
			optional
			shadow
		}
		fail_open
	}
	stint_status /limits {
		hide_ids
	}
}`)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"file": "/var/lib/stint/limits.db"}, apps["stint"])
	text, err := json.Marshal(apps["http"])
	require.NoError(t, err)
	for _, want := range []string{
		`{"fail_open":true,"handler":"stint","zones":[`,
		`{"count_status":[401,403],"limit":"5/15m","lock_out":900000000000,"match":[{"path":["/login"]}],"name":"logins"}`,
		`{"durability":"leased","in_flight":8,"ipv4_prefix":24,"ipv6_prefix":56,` +
			`"key":"{http.request.header.X-Api-Key}","leave":20,` +
			`"limit":"100/1m burst 20","name":"api","optional":true,"override_files":["plans.yml","more.yml"],` +
			`"overrides":{"alice":"600/1m","bob":"unlimited"},"refund_status":[500,502],"shadow":true}`,
		`{"handler":"stint_status","hide_ids":true}`,
	} {
		require.Contains(t, string(text), want)
	}
}

// Each mistake names its line.
func TestAdaptMistakes(t *testing.T) {
	for lines, want := range map[string]string{
		"":                                 "Caddyfile:4: stint needs a zone",
		"zones":                            "Caddyfile:3: unknown subdirective zones",
		"zone":                             "Caddyfile:3: wrong argument count",
		"zone a b {\nlimit 1/1h\n}":        "Caddyfile:3: wrong argument count",
		"zone a":                           "Caddyfile:3: zone a: a zone needs a limit",
		"zone a {\nlimit\n}":               "Caddyfile:4: wrong argument count",
		"zone a {\nlimit 5/m\n}":           "Caddyfile:4: stint: limit \"5/m\"",
		"zone a {\nlimit 1/1h\nkey\n}":     "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\nkeys x\n}":  "Caddyfile:5: unknown subdirective keys",
		"zone a {\nwindow 1m\n}":           "Caddyfile:4: unknown subdirective window of a zone, want limit, with",
		"zone a {\nevents 100\n}":          "Caddyfile:4: unknown subdirective events of a zone, want limit, with",
		"zone a {\nrate 100\n}":            "Caddyfile:4: unknown subdirective rate of a zone, want limit, with",
		"zone a {\nlimit 1/1h\nburst 5\n}": "Caddyfile:5: unknown subdirective burst of a zone, want it behind the limit",
		"zone a {\nlimit 1/1h\noveride x 2/1h\n}":                      "Caddyfile:5: unknown subdirective overide of a zone, want match, key",
		"zone a {\nlimit 1/1h\nipv4_prefix 33\n}":                      "Caddyfile:5: 33 is no number from 1 to 32",
		"zone a {\nlimit 1/1h\nipv6_prefix 129\n}":                     "Caddyfile:5: 129 is no number from 1 to 128",
		"zone a {\nlimit 1/1h\ndurability safe\n}":                     "Caddyfile:5: ",
		"zone a {\nlimit 1/1h\ncount_status\n}":                        "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\nrefund_status 5xx\n}":                   "Caddyfile:5: 5xx is no status",
		"zone a {\nlimit 1/1h\nlock_out\n}":                            "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\nlock_out soon\n}":                       "Caddyfile:5: soon is no duration",
		"zone a {\nlimit 1/1h\nlock_out 1h 2h\n}":                      "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\nleave -1\n}":                            "Caddyfile:5: -1 is no number from 1 to",
		"zone a {\nlimit 1/1h\nin_flight 0\n}":                         "Caddyfile:5: 0 is no number from 1 to",
		"zone a {\nlimit 1/1h\noverride x\n}":                          "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\noverride x lots\n}":                     "Caddyfile:5: stint: limit \"lots\"",
		"zone a {\nlimit 1/1h\noverrides\n}":                           "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\noptional yes\n}":                        "Caddyfile:5: wrong argument count",
		"zone a {\nlimit 1/1h\nmatch {\nnothing\n}\n}":                 "Caddyfile:7: module not registered",
		"zone a {\nlimit 1/1h\n}\nfail_open yes":                       "Caddyfile:6: wrong argument count",
		"zone a {\nlimit 1/1h\ncount_status 401\nrefund_status 500\n}": "Caddyfile:7: zone a: count_status and refund_status",
	} {
		t.Run(lines, func(t *testing.T) {
			_, err := adapt(t, "example.com {\nstint {\n"+lines+"\n}\n}")
			require.ErrorContains(t, err, strings.SplitN(want, ": ", 2)[1])
			require.ErrorContains(t, err, strings.SplitN(want, ": ", 2)[0])
		})
	}
}

package caddylimit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/limitsfile"
	"github.com/stint-go/stint/rules"
)

// A Zone is a limit with a name, and the requests that it applies to.
type Zone struct {
	// Name is the label of the limit in the file. Zones with the same name share
	// their buckets, and must have the same limit and overrides.
	Name string `json:"name"`

	// MatcherSetsRaw says which requests spend. The default is all of them.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Key is whose bucket a request spends from, with placeholders. The default is
	// the address of the client, as Caddy's trusted_proxies finds it. If the key is
	// an address, all spellings of it are one bucket.
	Key string `json:"key,omitempty"`

	// IPv4Prefix and IPv6Prefix are how many bits of an address count; the defaults
	// are 32 and 64.
	IPv4Prefix int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`

	// Limit is the limit of each key, such as "5/15m", "100/1m burst 20",
	// "10000/month@Europe/Berlin", "unlimited" or "blocked".
	Limit string `json:"limit"`

	// Durability says what a crash may cost: memory, flushed (the default), leased
	// or synced.
	Durability string `json:"durability,omitempty"`

	// CountStatus makes only responses with these statuses spend. RefundStatus
	// returns the tokens of responses with these statuses.
	CountStatus  []int `json:"count_status,omitempty"`
	RefundStatus []int `json:"refund_status,omitempty"`

	// LockOut denies everything to a key for this long after it has used up its
	// tokens.
	LockOut caddy.Duration `json:"lock_out,omitempty"`

	// InFlight is how many requests of one key may run at the same time; 0 means
	// any number.
	InFlight int64 `json:"in_flight,omitempty"`

	// Leave is how many tokens must remain in the bucket, for the requests of other
	// zones with the same name.
	Leave int64 `json:"leave,omitempty"`

	// Optional lets requests pass for which the key is empty. Otherwise they are
	// answered with 400.
	Optional bool `json:"optional,omitempty"`

	// Shadow makes the zone count, and never deny.
	Shadow bool `json:"shadow,omitempty"`

	// Overrides are the limits of some keys.
	Overrides map[string]string `json:"overrides,omitempty"`

	// OverrideFiles are files of overrides and groups, as package limitsfile reads
	// them. They are read again at each reload.
	OverrideFiles []string `json:"override_files,omitempty"`

	matchers caddyhttp.MatcherSets
	number   stint.Name

	allowed, denied, shadowed prometheus.Counter
}

const defaultKey = "{http.vars." + caddyhttp.ClientIPVarKey + "}"

func replacerOf(r *http.Request) *caddy.Replacer {
	return r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}

func (z *Zone) provision(ctx caddy.Context) error {
	z.Key = cmp.Or(z.Key, defaultKey)
	z.IPv4Prefix, z.IPv6Prefix = cmp.Or(z.IPv4Prefix, 32), cmp.Or(z.IPv6Prefix, 64)
	for _, name := range z.unknown() {
		ctx.Logger().Warn("Caddy has no such placeholder: if no directive, such as map, sets it, the key is wrong",
			zap.String("zone", z.Name), zap.String("placeholder", "{"+name+"}"))
	}
	for _, path := range z.OverrideFiles { // Start reads them, but caddy validate does not start
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("zone %s: overrides: %w", z.Name, err)
		}
	}
	loaded, err := ctx.LoadModule(z, "MatcherSetsRaw")
	if err != nil {
		return fmt.Errorf("zone %s: %w", z.Name, err)
	}
	return z.matchers.FromInterface(loaded)
}

// unknown returns the placeholders of the key that Caddy does not set: the names of
// its own have a point. Those of a Caddyfile have been replaced by them.
func (z *Zone) unknown() (names []string) {
	caddy.NewReplacer().ReplaceFunc(z.Key, func(name string, _ any) (any, error) {
		if !strings.Contains(name, ".") {
			names = append(names, name)
		}
		return nil, nil
	})
	return names
}

// validate returns the first mistake of a zone that needs no file to find.
func (z *Zone) validate() error {
	var err error
	switch {
	case z.Name == "":
		err = errors.New("a zone needs a name")
	case z.Limit == "" && z.InFlight == 0:
		err = errors.New("a zone needs a limit, such as 100/1m, or in_flight")
	case z.IPv4Prefix < 0 || z.IPv4Prefix > 32:
		err = fmt.Errorf("ipv4_prefix is %d, want 1 to 32", z.IPv4Prefix)
	case z.IPv6Prefix < 0 || z.IPv6Prefix > 128:
		err = fmt.Errorf("ipv6_prefix is %d, want 1 to 128", z.IPv6Prefix)
	case z.Leave < 0:
		err = fmt.Errorf("leave is %d, want 0 or more", z.Leave)
	case z.InFlight < 0:
		err = fmt.Errorf("in_flight is %d, want 1 or more", z.InFlight)
	case z.LockOut < 0:
		err = errors.New("lock_out is negative")
	case len(z.CountStatus) > 0 && len(z.RefundStatus) > 0:
		err = errors.New("count_status and refund_status exclude each other")
	}
	if err == nil {
		_, err = z.limit()
	}
	for _, text := range z.Overrides {
		if err == nil {
			_, err = parseLimit(text, z.Durability)
		}
	}
	if err != nil {
		return fmt.Errorf("zone %s: %w", z.Name, err)
	}
	return nil
}

// limit returns the limit of each key.
func (z *Zone) limit() (stint.Limit, error) {
	if z.Limit == "" { // the zone only bounds how many requests run
		return stint.Unlimited, nil
	}
	return parseLimit(z.Limit, z.Durability)
}

func parseLimit(text, durability string) (limit stint.Limit, err error) {
	switch text {
	case "unlimited":
		return stint.Unlimited, nil
	case "blocked":
		return stint.Blocked, nil
	}
	if limit, err = stint.ParseLimit(text); err == nil && durability != "" {
		limit.Durability, err = stint.ParseDurability(durability)
	}
	return limit, err
}

// overrides returns the overrides of the Caddyfile and of files, by canonical id.
// names are the zones that the files may name.
func (z *Zone) overrides(names stint.Names) (map[string]stint.Limit, error) {
	overrides := make(map[string]stint.Limit, len(z.Overrides))
	for given, text := range z.Overrides {
		limit, err := parseLimit(text, z.Durability)
		if err != nil {
			return nil, fmt.Errorf("zone %s: override %s: %w", z.Name, given, err)
		}
		canonical := z.canonical(given)
		if _, twice := overrides[canonical]; twice {
			return nil, fmt.Errorf("zone %s: %s has two overrides", z.Name, canonical)
		}
		overrides[canonical] = limit
	}
	for _, path := range z.OverrideFiles {
		if err := z.addFile(names, path, overrides); err != nil {
			return nil, err
		}
	}
	return overrides, nil
}

// addFile adds to overrides what a file says of the zone. An override of the
// Caddyfile comes before one of a file. One that names no durability has that of
// the zone, as those of the Caddyfile do.
func (z *Zone) addFile(names stint.Names, path string, overrides map[string]stint.Limit) error {
	limits, err := limitsfile.LoadOverrides(names, path)
	if err != nil {
		return fmt.Errorf("zone %s: overrides: %w", z.Name, err)
	}
	var level stint.Durability
	if z.Durability != "" {
		if level, err = stint.ParseDurability(z.Durability); err != nil {
			return fmt.Errorf("zone %s: %w", z.Name, err)
		}
	}
	seen := make(map[string]bool)
	for o := range limits.Overrides(z.number) {
		canonical, limit := z.canonical(o.Key.ID), o.Limit
		if seen[canonical] {
			return fmt.Errorf("zone %s: %s: %s has two overrides", z.Name, path, canonical)
		}
		seen[canonical] = true
		if limit != stint.Unlimited && limit != stint.Blocked {
			limit.Durability = cmp.Or(limit.Durability, level)
		}
		if _, ok := overrides[canonical]; !ok {
			overrides[canonical] = limit
		}
	}
	return nil
}

// counters finds the counters of a zone, so that a request need not.
func (z *Zone) counters(of *prometheus.CounterVec) {
	z.allowed = of.WithLabelValues(z.Name, "allowed")
	z.denied = of.WithLabelValues(z.Name, "denied")
	z.shadowed = of.WithLabelValues(z.Name, "denied in shadow")
}

func (z *Zone) count(d *rules.Decision) prometheus.Counter {
	switch {
	case d.Allowed:
		return z.allowed
	case d.Shadow:
		return z.shadowed
	}
	return z.denied
}

// conflict returns an error if two zones with one name are not one limit.
func (z *Zone) conflict(other *Zone) error {
	for field, equal := range map[string]bool{
		"limit":          z.Limit == other.Limit,
		"durability":     z.Durability == other.Durability,
		"ipv4_prefix":    z.IPv4Prefix == other.IPv4Prefix,
		"ipv6_prefix":    z.IPv6Prefix == other.IPv6Prefix,
		"override":       maps.Equal(z.Overrides, other.Overrides),
		"override files": slices.Equal(z.OverrideFiles, other.OverrideFiles),
	} {
		if !equal {
			return fmt.Errorf("zone %s has two meanings: its %s differs between two places; "+
				"give one of them another name", z.Name, field)
		}
	}
	return nil
}

// rule returns the zone as a rule of package httplimit.
func (z *Zone) rule() httplimit.Rule {
	ru := httplimit.Rule{
		Key:      z.keyOf,
		Optional: true, // keyOf says which requests the zone skips
		LockOut:  time.Duration(z.LockOut),
		InFlight: z.InFlight,
		Leave:    z.Leave,
		Shadow:   z.Shadow,
	}
	if len(z.CountStatus) > 0 {
		ru.Count = rules.OneOf(z.CountStatus...)
	}
	if len(z.RefundStatus) > 0 {
		ru.Refund = rules.OneOf(z.RefundStatus...)
	}
	return ru
}

// keyOf is the zone's httplimit.KeyFunc.
func (z *Zone) keyOf(r *http.Request) (stint.Key, error) {
	if matched, err := z.matchers.AnyMatchWithError(r); err != nil {
		return stint.Key{}, err
	} else if !matched {
		return stint.Key{}, rules.ErrNoID
	}
	var id string
	if z.Key == defaultKey { // without a look at each placeholder
		id, _ = caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	} else {
		id = z.expand(replacerOf(r))
	}
	switch {
	case id != "":
		return z.number.Key(z.canonical(id)), nil
	case z.Optional:
		return stint.Key{}, rules.ErrNoID
	}
	return stint.Key{}, fmt.Errorf("%w: the key of zone %s is empty", stint.ErrInvalidID, z.Name)
}

// expand returns the zone's key with the values of its placeholders. If all of
// them are empty, so is the key: the text between them identifies no client.
func (z *Zone) expand(repl *caddy.Replacer) string {
	placeholders, filled := false, false
	id, err := repl.ReplaceFunc(z.Key, func(_ string, value any) (any, error) {
		placeholders = true
		filled = filled || caddy.ToString(value) != ""
		return value, nil
	})
	if err != nil || placeholders && !filled {
		return ""
	}
	return id
}

// canonical returns the one spelling of an id. An override may name the network of
// clients in any spelling.
func (z *Zone) canonical(id string) string {
	if !strings.ContainsAny(id, ".:") {
		return id
	}
	if addr, err := netip.ParseAddr(id); err == nil {
		return z.client(addr)
	}
	network, err := netip.ParsePrefix(id)
	if of := z.client(network.Addr()); err == nil && of == network.Masked().String() {
		return of
	}
	return id
}

// client returns the id of a client's address. An IPv6 address that stands for an
// IPv4 one is that, and another one stands for its network.
func (z *Zone) client(addr netip.Addr) string {
	if id := z.number.IP(addr).ID; z.IPv4Prefix == 32 && !strings.Contains(id, ":") {
		return id
	}
	return z.number.Prefix(addr, z.IPv4Prefix, z.IPv6Prefix).ID
}

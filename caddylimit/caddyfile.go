package caddylimit

import (
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/stint-go/stint"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("stint", parseApp)
	httpcaddyfile.RegisterHandlerDirective("stint", parseHandler)
	httpcaddyfile.RegisterHandlerDirective("stint_status", parseStatus)
	httpcaddyfile.RegisterDirectiveOrder("stint", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterDirectiveOrder("stint_status", httpcaddyfile.Before, "respond")
}

// parseApp reads the global option:
//
//	stint {
//		file <path>
//	}
func parseApp(d *caddyfile.Dispenser, _ any) (any, error) {
	a := new(App)
	d.Next() // the option's name
	if err := arguments(d); err != nil {
		return nil, err
	}
	for d.NextBlock(0) {
		if d.Val() != "file" {
			return nil, d.Errf("unknown option %s of stint, want file", d.Val())
		}
		if err := arguments(d, &a.File); err != nil {
			return nil, err
		}
	}
	return httpcaddyfile.App{Name: "stint", Value: caddyconfig.JSON(a, nil)}, nil
}

func parseHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile reads the directive:
//
//	stint [<matcher>] {
//		zone <name> {
//			match {
//				<matchers>
//			}
//			key            <text with placeholders>
//			ipv4_prefix    <bits>
//			ipv6_prefix    <bits>
//			limit          <limit>
//			durability     memory|flushed|leased|synced
//			count_status   <status...>
//			refund_status  <status...>
//			lock_out       <duration>
//			in_flight      <requests>
//			leave          <tokens>
//			override       <key> <limit>
//			overrides      <file...>
//			optional
//			shadow
//		}
//		fail_open
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "zone":
			z := new(Zone)
			if err := z.unmarshal(d); err != nil {
				return err
			}
			h.Zones = append(h.Zones, z)
		case "fail_open":
			if err := flag(d, &h.FailOpen); err != nil {
				return err
			}
		default:
			return d.Errf("unknown subdirective %s of stint, want zone or fail_open", d.Val())
		}
	}
	if len(h.Zones) == 0 {
		return d.Err("stint needs a zone")
	}
	return nil
}

// unmarshal reads a zone, from its name on.
func (z *Zone) unmarshal(d *caddyfile.Dispenser) error {
	if err := arguments(d, &z.Name); err != nil {
		return err
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := z.subdirective(d); err != nil {
			return err
		}
	}
	if err := z.validate(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// subdirective reads the line of a zone on which d stands.
func (z *Zone) subdirective(d *caddyfile.Dispenser) error {
	switch d.Val() {
	case "match":
		set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
		z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
		return err
	case "key":
		return arguments(d, &z.Key)
	case "ipv4_prefix":
		return number(d, &z.IPv4Prefix, 32)
	case "ipv6_prefix":
		return number(d, &z.IPv6Prefix, 128)
	case "limit":
		return limitText(d, &z.Limit)
	case "durability":
		if err := arguments(d, &z.Durability); err != nil {
			return err
		}
		if _, err := stint.ParseDurability(z.Durability); err != nil {
			return d.WrapErr(err)
		}
		return nil
	case "count_status":
		return statuses(d, &z.CountStatus)
	case "refund_status":
		return statuses(d, &z.RefundStatus)
	case "lock_out":
		return duration(d, &z.LockOut)
	case "in_flight":
		return number(d, &z.InFlight, 1<<40)
	case "leave":
		return number(d, &z.Leave, 1<<40)
	case "override":
		var id, text string
		if !d.Args(&id) {
			return d.ArgErr()
		}
		if err := limitText(d, &text); err != nil {
			return err
		}
		if _, ok := z.Overrides[id]; ok {
			return d.Errf("%s has two overrides", id)
		}
		if z.Overrides == nil {
			z.Overrides = make(map[string]string)
		}
		z.Overrides[id] = text
		return nil
	case "overrides":
		z.OverrideFiles = append(z.OverrideFiles, d.RemainingArgs()...)
		if len(z.OverrideFiles) == 0 {
			return d.ArgErr()
		}
		return nil
	case "optional":
		return flag(d, &z.Optional)
	case "shadow":
		return flag(d, &z.Shadow)
	}
	if meant, ok := meant[d.Val()]; ok {
		return d.Errf("unknown subdirective %s of a zone, want %s", d.Val(), meant)
	}
	return d.Errf("unknown subdirective %s of a zone, want match, key, ipv4_prefix, ipv6_prefix, limit, durability, "+
		"count_status, refund_status, lock_out, in_flight, leave, override, overrides, optional or shadow", d.Val())
}

// meant has the subdirectives that say what those of other modules say.
var meant = map[string]string{
	"events": "limit, with the period: limit 100/1m",
	"window": "limit, with the number of events: limit 100/1m",
	"rate":   "limit, with the period: limit 100/1m",
	"burst":  "it behind the limit: limit 100/1m burst 20",
}

// limitText reads a limit, which may have a burst: 100/1m burst 20.
func limitText(d *caddyfile.Dispenser, to *string) error {
	if *to = strings.Join(d.RemainingArgs(), " "); *to == "" {
		return d.ArgErr()
	}
	if _, err := parseLimit(*to, ""); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// arguments reads the arguments of a line, as many as there are targets.
func arguments(d *caddyfile.Dispenser, to ...*string) error {
	if !d.AllArgs(to...) {
		return d.ArgErr()
	}
	return nil
}

// flag reads a subdirective without arguments.
func flag(d *caddyfile.Dispenser, to *bool) error {
	*to = true
	return arguments(d)
}

// number reads the only argument of a subdirective, from 1 to most.
func number[N int | int64](d *caddyfile.Dispenser, to *N, most N) error {
	var text string
	if err := arguments(d, &text); err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > int64(most) {
		return d.Errf("%s is no number from 1 to %d", text, most)
	}
	*to = N(n)
	return nil
}

func statuses(d *caddyfile.Dispenser, to *[]int) error {
	for d.NextArg() {
		n, err := strconv.Atoi(d.Val())
		if err != nil || n < 100 || n > 599 {
			return d.Errf("%s is no status, want 100 to 599", d.Val())
		}
		*to = append(*to, n)
	}
	if len(*to) == 0 {
		return d.ArgErr()
	}
	return nil
}

// duration reads the only argument of a subdirective.
func duration(d *caddyfile.Dispenser, to *caddy.Duration) error {
	var text string
	if err := arguments(d, &text); err != nil {
		return err
	}
	parsed, err := caddy.ParseDuration(text)
	if err != nil {
		return d.Errf("%s is no duration: %v", text, err)
	}
	*to = caddy.Duration(parsed)
	return nil
}

// parseStatus reads the directive:
//
//	stint_status [<matcher>] {
//		hide_ids
//	}
func parseStatus(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	s, d := new(Status), h.Dispenser
	d.Next() // the directive's name
	if d.NextArg() {
		return nil, d.ArgErr()
	}
	for d.NextBlock(0) {
		if d.Val() != "hide_ids" {
			return nil, d.Errf("unknown subdirective %s of stint_status, want hide_ids", d.Val())
		}
		if err := flag(d, &s.HideIDs); err != nil {
			return nil, err
		}
	}
	return s, nil
}

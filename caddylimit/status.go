package caddylimit

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit/statuspage"
)

func init() {
	caddy.RegisterModule(Status{})
}

// Status answers with a page that shows zones and their buckets to an operator.
// Put it behind authentication.
type Status struct {
	// HideIDs leaves the keys out of the page.
	HideIDs bool `json:"hide_ids,omitempty"`

	app  *App
	page *statuspage.Page
}

// CaddyModule implements caddy.Module.
func (Status) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.stint_status", New: func() caddy.Module { return new(Status) }}
}

// Provision implements caddy.Provisioner.
func (s *Status) Provision(ctx caddy.Context) error {
	app, err := ctx.App("stint")
	if err != nil {
		return err
	}
	s.app = app.(*App)
	s.app.onStart = append(s.app.onStart, func(lim *hostlimit.Limiter) {
		s.page = statuspage.New(lim, &statuspage.Options{HideIDs: s.HideIDs})
		s.app.pages = append(s.app.pages, s.page.Observer())
	})
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. It is the last handler of
// its route.
func (s *Status) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if err := s.app.wait(r.Context()); err != nil {
		return err
	}
	s.page.ServeHTTP(w, r)
	return nil
}

var (
	_ caddy.Provisioner           = (*Status)(nil)
	_ caddyhttp.MiddlewareHandler = (*Status)(nil)
)

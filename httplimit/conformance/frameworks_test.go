package conformance

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/labstack/echo/v4"
	"github.com/pocketbase/pocketbase/tools/router"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// forGin makes middleware of gin.
func forGin(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			c.Next()
			httplimit.SetStatus(r, c.Writer.Status())
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}

// forEcho makes middleware of echo.
func forEcho(limit func(http.Handler) http.Handler) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				status := http.StatusInternalServerError
				var failed *echo.HTTPError
				if err = next(c); err == nil {
					status = c.Response().Status
				} else if errors.As(err, &failed) {
					status = failed.Code
				}
				httplimit.SetStatus(r, status)
			})).ServeHTTP(c.Response(), c.Request())
			return err
		}
	}
}

// forPocketBase makes middleware of PocketBase.
func forPocketBase(limit func(http.Handler) http.Handler) func(*router.Event) error {
	return func(e *router.Event) (err error) {
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			e.Request = r
			status := http.StatusOK
			if err = e.Next(); err != nil {
				status = router.ToApiError(err).Status
			} else if s := e.Status(); s != 0 {
				status = s
			}
			httplimit.SetStatus(r, status)
		})).ServeHTTP(e.Response, e.Request)
		return err
	}
}

// frameworks serve /ok, /unauthorized and /broken behind middleware, and return
// the URL. Their handlers return an error if the framework has one.
var frameworks = map[string]func(t *testing.T, limit func(http.Handler) http.Handler) string{
	"chi": func(t *testing.T, limit func(http.Handler) http.Handler) string {
		r := chi.NewRouter()
		r.Use(limit)
		r.Get("/ok", func(http.ResponseWriter, *http.Request) {})
		r.Get("/unauthorized", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) })
		r.Get("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
		return serve(t, r)
	},
	"gin": func(t *testing.T, limit func(http.Handler) http.Handler) string {
		gin.SetMode(gin.ReleaseMode)
		r := gin.New()
		r.Use(forGin(limit))
		r.GET("/ok", func(c *gin.Context) { c.String(200, "ok") })
		r.GET("/unauthorized", func(c *gin.Context) { c.AbortWithStatus(401) })
		r.GET("/broken", func(c *gin.Context) { c.Status(500) })
		return serve(t, r)
	},
	"echo": func(t *testing.T, limit func(http.Handler) http.Handler) string {
		e := echo.New()
		e.Use(forEcho(limit))
		e.GET("/ok", func(c echo.Context) error { return c.String(200, "ok") })
		e.GET("/unauthorized", func(echo.Context) error { return echo.ErrUnauthorized })
		e.GET("/broken", func(echo.Context) error { return errors.New("broken") })
		return serve(t, e)
	},
	"PocketBase": func(t *testing.T, limit func(http.Handler) http.Handler) string {
		r := router.NewRouter(func(w http.ResponseWriter, r *http.Request) (*router.Event, router.EventCleanupFunc) {
			return &router.Event{Response: w, Request: r}, nil
		})
		r.BindFunc(forPocketBase(limit))
		r.GET("/ok", func(e *router.Event) error { return e.String(200, "ok") })
		r.GET("/unauthorized", func(e *router.Event) error { return e.UnauthorizedError("", nil) })
		r.GET("/broken", func(e *router.Event) error { return e.InternalServerError("", nil) })
		mux, err := r.BuildMux()
		require.NoError(t, err)
		return serve(t, mux)
	},
}

const perClient stint.Name = 1

func twoAnHour(int) stint.Limit { return stint.PerHour(2) }

// Each adapter of docs/frameworks.md denies, and its rules see the status that
// the client gets.
func TestFrameworks(t *testing.T) {
	statuses := func(url string, n int) (all []int) {
		for range n {
			res, _ := get(t, url)
			all = append(all, res.StatusCode)
			if res.StatusCode == 429 {
				require.NotEmpty(t, res.Header.Get("Retry-After"))
			}
		}
		return all
	}
	for name, framework := range frameworks {
		t.Run(name, func(t *testing.T) {
			rule := httplimit.Rule{Key: httplimit.ByIP(perClient)}
			url := framework(t, httplimit.Middleware(limiter(t, twoAnHour), nil, rule))
			require.Equal(t, []int{200, 200, 429, 429}, statuses(url+"/ok", 4))

			rule.Count = httplimit.AuthFailed
			url = framework(t, httplimit.Middleware(limiter(t, twoAnHour), nil, rule))
			require.Equal(t, []int{200, 200, 200, 200}, statuses(url+"/ok", 4))
			require.Equal(t, []int{401, 401, 429}, statuses(url+"/unauthorized", 3))

			rule.Count, rule.Refund = nil, httplimit.ServerError
			url = framework(t, httplimit.Middleware(limiter(t, twoAnHour), nil, rule))
			require.Equal(t, []int{500, 500, 500, 500}, statuses(url+"/broken", 4))
			require.Equal(t, []int{200, 200, 429}, statuses(url+"/ok", 3))
		})
	}
}

// fiber's adaptor returns from the middleware before the handler runs, so only
// rules that spend before the handler work.
func TestFiber(t *testing.T) {
	start := func(limit func(http.Handler) http.Handler) string {
		app := fiber.New(fiber.Config{DisableStartupMessage: true})
		app.Use(adaptor.HTTPMiddleware(limit))
		app.Get("/unauthorized", func(c *fiber.Ctx) error { return fiber.ErrUnauthorized })
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go app.Listener(l)
		t.Cleanup(func() { app.Shutdown() })
		return "http://" + l.Addr().String()
	}
	rule := httplimit.Rule{Key: httplimit.ByIP(perClient)}
	url := start(httplimit.Middleware(limiter(t, twoAnHour), nil, rule))
	for _, want := range []int{401, 401, 429} {
		res, _ := get(t, url+"/unauthorized")
		require.Equal(t, want, res.StatusCode)
	}
	rule.Count = httplimit.AuthFailed
	url = start(httplimit.Middleware(limiter(t, twoAnHour), nil, rule))
	for range 4 {
		res, _ := get(t, url+"/unauthorized")
		require.Equal(t, 401, res.StatusCode, "the rule sees 200: docs/frameworks.md says so")
	}
}

// A handler of connect-go is an http.Handler. Its client sees a denial as
// CodeUnavailable.
func TestConnect(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/test.v1.Test/Call", connect.NewUnaryHandler("/test.v1.Test/Call",
		func(_ context.Context, _ *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("who?"))
		}))
	rule := httplimit.Rule{Key: httplimit.ByIP(perClient), Count: httplimit.AuthFailed}
	url := serve(t, httplimit.Middleware(limiter(t, twoAnHour), nil, rule)(mux))
	client := connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient, url+"/test.v1.Test/Call")
	for _, want := range []connect.Code{connect.CodeUnauthenticated, connect.CodeUnauthenticated, connect.CodeUnavailable} {
		_, err := client.CallUnary(t.Context(), connect.NewRequest(new(emptypb.Empty)))
		require.Equal(t, want, connect.CodeOf(err))
	}
}

package httplimit

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

func TestProblem(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(1)})
	spend(t, lim, local[perAddress], 1)
	srv := serve(t, Middleware(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))).URL
	const json, html, text = "application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
	for accept, want := range map[string]string{
		"":                         json,
		"*/*":                      json,
		"application/json":         json,
		"application/problem+json": json,
		"image/png":                json,
		"text/plain":               text,
		"text/*":                   text,
		"TEXT/HTML":                html,
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8": html,
		"text/html;q=0.5, application/json":                                          json,
		"text/html;q=0.5, application/json;q=0.4":                                    html,
		"text/html, application/json":                                                json,
		"text/html;q=0":                                                              json,
		"text/html;q=x":                                                              json,
		"text/html;q=2, */*;q=0.1":                                                   json,
		"text/plain;q=NaN":                                                           json,
		"text/plain;q=0.9, text/html;q=0.8":                                          text,
	} {
		t.Run("Accept: "+accept, func(t *testing.T) {
			res := get(t, srv, "Accept", accept)
			require.Equal(t, 429, res.StatusCode)
			require.Equal(t, want, res.Header.Get("Content-Type"))
			require.Equal(t, "no-store", res.Header.Get("Cache-Control"), "so it needs no Vary")
			require.Contains(t, res.body, "Try again in 60 minutes.")
		})
	}
	t.Run("fields about another body", func(t *testing.T) {
		limited := Middleware(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
		res := get(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for field, value := range map[string]string{
				"Content-Length": "3", "Content-Encoding": "gzip", "ETag": `"x"`, "Last-Modified": "x", "Vary": "Origin",
				"X-Other": "y",
			} {
				w.Header().Set(field, value)
			}
			limited.ServeHTTP(w, r)
		})).URL)
		require.Contains(t, res.body, `"violated-policies":["address"]}`, "the whole body")
		require.Equal(t, []string{"Origin"}, res.Header["Vary"])
		require.Equal(t, []string{"y"}, res.Header["X-Other"])
		for _, field := range []string{"Content-Encoding", "Etag", "Last-Modified"} {
			require.NotContains(t, res.Header, field)
		}
	})
	t.Run("a Shadow rule is not named", func(t *testing.T) {
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(1), everyone: stint.PerHour(1)})
		spend(t, lim, local[perAddress], 1)
		spend(t, lim, everyone.Key(""), 1)
		shadow := Rule{Key: Single(everyone), Shadow: true}
		res := get(t, serve(t, Middleware(lim, nil, shadow, Rule{Key: ByIP(perAddress)})(nil)).URL)
		require.Contains(t, res.body, `"violated-policies":["address"]}`)
	})
	t.Run("Options.Denied", func(t *testing.T) {
		denied := func(w http.ResponseWriter, r *http.Request, d stint.Decision) {
			w.WriteHeader(http.StatusTeapot)
			w.Write([]byte(d.RetryAfter.String() + " " + rules.Decisions(r.Context())[0].Label))
		}
		res := get(t, serve(t, Middleware(lim, &Options{Denied: denied}, Rule{Key: ByIP(perAddress)})(nil)).URL)
		require.Equal(t, http.StatusTeapot, res.StatusCode)
		require.Equal(t, "1h0m0s address", res.body)
		require.Equal(t, "3600", res.Header.Get("Retry-After"))
	})
}

func TestInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1: "1 second", time.Second: "1 second", 1001 * time.Millisecond: "2 seconds", 119 * time.Second: "119 seconds",
		2 * time.Minute: "2 minutes", 121 * time.Second: "3 minutes", 2 * time.Hour: "2 hours", 48 * time.Hour: "2 days",
		119 * time.Minute: "119 minutes", 47 * time.Hour: "47 hours",
	} {
		require.Equal(t, want, string(appendWords(nil, seconds(d))), d)
	}
}

// upload posts a form with a user and a file.
func upload(t *testing.T, url string, content string) string {
	body := new(bytes.Buffer)
	w := multipart.NewWriter(body)
	require.NoError(t, w.WriteField("user", "ada"))
	part, err := w.CreateFormFile("file", "name")
	require.NoError(t, err)
	io.WriteString(part, content)
	require.NoError(t, w.Close())
	res, err := http.Post(url, w.FormDataContentType(), body)
	require.NoError(t, err)
	return read(t, res)
}

// The handler can read a form that a KeyFunc has read before.
func TestFormInKeyFunc(t *testing.T) {
	byUser := func(r *http.Request) (stint.Key, error) {
		if err := r.ParseMultipartForm(1 << 20); err != nil && err != http.ErrNotMultipart {
			return stint.Key{}, err
		}
		return perKey.Key(r.FormValue("user")), nil
	}
	lim, _ := newLimiter(t, nil)
	for _, pattern := range []string{"", "POST /up/{id}"} {
		handler := func(w http.ResponseWriter, r *http.Request) {
			if f, header, err := r.FormFile("file"); err == nil {
				io.WriteString(w, header.Filename+" ")
				io.Copy(w, f)
			}
			io.WriteString(w, r.FormValue("password"))
		}
		srv := serve(t, Middleware(lim, nil, Rule{Pattern: pattern, Key: byUser})(http.HandlerFunc(handler)))
		res, err := http.PostForm(srv.URL+"/up/7", url.Values{"user": {"ada"}, "password": {"lovelace"}})
		require.NoError(t, err)
		require.Equal(t, "lovelace", read(t, res))
		require.Equal(t, "name lovelace", upload(t, srv.URL+"/up/7", "lovelace"))
	}
	require.EqualValues(t, 1, left(t, lim, perKey.Key("ada")))
}

// Temporary files of an upload are removed after every end of the request.
func TestUploadRemoval(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // on Windows
	lim, _ := newLimiter(t, nil)
	spend(t, lim, perKey.Key("k"), 5)
	kept := 0
	read := func(_ http.ResponseWriter, r *http.Request) {
		require.NoError(t, r.ParseMultipartForm(1))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		kept = len(entries)
		panic("oops")
	}
	denied := &Options{Denied: func(w http.ResponseWriter, r *http.Request, _ stint.Decision) { read(w, r) }}
	full := func(*http.Request) (stint.Key, error) { return perKey.Key("k"), nil }
	address := Middleware(lim, nil, Rule{Key: ByIP(perAddress)})
	for name, h := range map[string]http.Handler{
		"nested":         Middleware(lim, nil, Rule{Key: Single(everyone)})(address(http.HandlerFunc(read))),
		"after status":   Middleware(lim, nil, Rule{Key: ByIP(failures), Count: AuthFailed})(http.HandlerFunc(read)),
		"Options.Denied": Middleware(lim, denied, Rule{Key: full})(nil),
	} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { recover() }()
				h.ServeHTTP(w, r)
			}))
			upload(t, srv.URL, strings.Repeat("x", 1000))
			srv.Close()
			require.Equal(t, 1, kept)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

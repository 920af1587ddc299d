package main

import (
	"crypto/subtle"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/rules"
)

// maxBody is how much of a request's body is read. byUser reads it also if the
// request is denied.
const maxBody = 64 << 10

func routes(limiter *stint.Limiter, clients httplimit.ClientAddress, o httplimit.Observer) http.Handler {
	right := func(status int) bool { return !httplimit.AuthFailed(status) }
	opts := &httplimit.Options{Observers: []httplimit.Observer{o, {Error: logError}}}
	limit := httplimit.Middleware(limiter, opts,
		// A request with an API key spends from its account, by its plan. The
		// others spend from their address.
		httplimit.Rule{
			Pattern: "/api/", Key: rules.FirstOf(byAPIKey, clients.ByIP(RequestsPerAddress)),
		},

		// A login spends before the password is checked, so that guesses that
		// arrive together are counted. A right password gets its token back.
		// A wrong one that spends the last token locks the address out: for five
		// minutes, or for a day if it is the last one of the day.
		httplimit.Rule{
			Pattern: "POST /login", Key: clients.ByIP(LoginsPerAddress),
			Refund: right, LockOut: 5 * time.Minute,
		},
		httplimit.Rule{
			Pattern: "POST /login", Key: clients.ByIP(LoginsPerDay),
			Refund: right, LockOut: 24 * time.Hour,
		},
		httplimit.Rule{
			Pattern: "POST /login", Key: byUser, Optional: true,
			Refund: right,
		},
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/time", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, time.Now().Format(time.RFC3339))
	})
	mux.HandleFunc("POST /login", login)
	return http.MaxBytesHandler(limit(mux), maxBody)
}

func logError(r *http.Request, err error) { log.Print(r.Method, " ", r.URL.Path, ": ", err) }

// accounts has the account of each API key. A real server has a database.
var accounts = map[string]string{"key-of-ada": "ada", "key-of-bob": "bob"}

// byAPIKey finds the bucket of an account. A request with a key that the server
// did not issue has no id: otherwise each made-up key would have a full bucket.
func byAPIKey(r *http.Request) (stint.Key, error) {
	account, ok := accounts[r.Header.Get("X-API-Key")]
	if !ok {
		return stint.Key{}, rules.ErrNoID
	}
	return names.Key(RequestsPerAccount, account)
}

// byUser finds the bucket of the user that a login names.
func byUser(r *http.Request) (stint.Key, error) {
	user := r.FormValue("user")
	if user == "" {
		return stint.Key{}, rules.ErrNoID
	}
	return names.Key(LoginsPerUser, user)
}

func login(w http.ResponseWriter, r *http.Request) {
	password := []byte(r.FormValue("password"))
	right := subtle.ConstantTimeCompare(password, []byte("lovelace")) == 1
	if r.FormValue("user") != "ada" || !right {
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}

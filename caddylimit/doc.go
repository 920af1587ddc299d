// Package caddylimit adds stint to Caddy: rate limits, kept in one file, that
// survive restarts and reloads, with no separate server to run.
//
// Build Caddy with it (xcaddy build --with
// github.com/stint-go/stint/caddylimit), then write limits into the Caddyfile:
//
//	example.com {
//		stint {
//			zone logins {
//				match {
//					path /login
//				}
//				limit 5/15m
//				count_status 401 403
//				lock_out 15m 24h
//			}
//		}
//		reverse_proxy localhost:3000
//	}
//
// docs/caddy.md explains each line, and how to move from other plugins.
//
// # Modules
//
// The app "stint" opens the file of the buckets. The handler
// "http.handlers.stint" applies zones to requests, and
// "http.handlers.stint_status" serves a page that shows them. A zone is a limit
// with a name: all handlers that name the same zone share its buckets.
//
// # The file
//
// The file stays open across reloads, and other processes share it through
// package hostlimit. The command stint can work on it while Caddy runs. A
// second Caddy, such as one that replaces the first in an upgrade, uses the
// same buckets. The file records a permanent number for each zone, under the
// zone's name.
//
// # Errors
//
// A mistake in a zone is a config error with its file and line. If the file
// cannot be opened, Caddy does not start, and the error says what to do. If it
// fails later, requests are answered with 503, or pass if fail_open is set, and
// each event is logged.
package caddylimit

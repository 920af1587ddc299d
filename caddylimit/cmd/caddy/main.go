// Command caddy is the newest Caddy with stint, for those who have a clone and no
// xcaddy:
//
//	go -C caddylimit/cmd/caddy install .
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/stint-go/stint/caddylimit"
)

func main() { caddycmd.Main() }

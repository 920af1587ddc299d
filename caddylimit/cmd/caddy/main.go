// Command caddy is Caddy with stint, for those who do not build with xcaddy:
//
//	go install github.com/stint-go/stint/caddylimit/cmd/caddy@latest
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/stint-go/stint/caddylimit"
)

func main() { caddycmd.Main() }

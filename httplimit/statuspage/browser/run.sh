#!/bin/sh
# Tests the status page in Chromium, against examples/server under load. Installs what it needs.
set -eu
cd "$(dirname "$0")"

command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q chromium; }
npm ci --no-audit --no-fund --loglevel=error

dir=$(mktemp -d)
server= load=
stop() { kill $server $load 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"; }
trap stop EXIT
trap 'exit 1' INT TERM

go build -C ../../.. -o "$dir/server" ./examples/server
"$dir/server" -addr 127.0.0.1:0 -operators 127.0.0.1:0 -file "$dir/limits.db" >"$dir/out" &
server=$!
until grep -q '^status page' "$dir/out"; do kill -0 $server; sleep 0.1; done
SERVER="http://$(sed -n 's/^listening on //p' "$dir/out")"
OPERATORS="http://$(sed -n 's/^status page on //p' "$dir/out")"
export SERVER OPERATORS
node load.mjs &
load=$!
node --test --test-timeout=600000 status.test.mjs

#!/bin/sh
# Runs wrk (https://github.com/wg/wrk) against this server, from one address, with a limit of 100 requests
# a second and without one. Fails unless 100 a second are admitted after the burst of 100, within 1 %.
set -eu
cd "$(dirname "$0")"

command -v wrk >/dev/null || { apt-get update -q && apt-get install -y -q wrk; }
dir=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/server" .

# start LIMIT FILE FLAG... starts the server, with $url for its address.
start() {
  limit=$1 file=$2
  shift 2
  "$dir/server" -addr 127.0.0.1:0 -file "$dir/$file.db" -api "$limit" "$@" >"$dir/out" &
  server=$!
  until grep -q '^listening' "$dir/out"; do kill -0 $server; sleep 0.1; done
  url="http://$(sed -n 's/^listening on //p' "$dir/out")"
}

stop() {
  kill $server
  wait $server 2>/dev/null || true
}

# turns PATH... measures the CPU time of the server for a request to each path, by turns, in random order.
turns() {
  for i in $(seq 15); do
    for path in $(shuf -e "$@"); do
      before=$(cpu)
      requests=$(wrk -t1 -c16 -d1s "$url$path" | sed -n 's/^ *\([0-9]*\) requests in.*/\1/p')
      echo "$i $path $(cpu) $before $requests"
    done
  done | awk '{ print $1, $2, ($3 - $4) / $5 * 1e6 }' >"$dir/turns"
}
cpu() { awk '{ print ($14 + $15) / '"$(getconf CLK_TCK)"' }' /proc/$server/stat; }

# more PATH THAN prints how much more CPU time a request to PATH takes than one to THAN, as the median of the rounds.
more() {
  awk -v a="$1" -v b="$2" '$2 == a { x[$1] = $3 } $2 == b { y[$1] = $3 } END { for (i in x) print x[i] - y[i] }' "$dir/turns" |
    sort -n | awk '{ v[NR] = $1 } END { printf "%.1f us", v[int((NR + 1) / 2)] }'
}

start 100/1s limited
wrk -t1 -c16 -d10s -s count.lua "$url/limited"
stop

for limit in 100/1s 1000000000/1s; do
  start $limit "measured-${limit%/*}" -measure
  wrk -t1 -c16 -d5s "$url/limited" >"$dir/wrk"
  stop
  grep '^in the limiter' "$dir/out"
done

start 100/1s denying
turns /unlimited/empty /unlimited/denial /limited
echo "CPU time per request: an empty handler takes $(more /unlimited/empty '');" \
  "a denial by the limit takes $(more /limited /unlimited/empty) more, the same answer without a limit $(more /unlimited/denial /unlimited/empty) more"
echo "CPU time of the limit in a denial: $(more /limited /unlimited/denial)"
stop

# A limit that is never reached, with its two header fields and without them, and the two fields without a limit.
start 1000000000/1s open
turns /unlimited/empty /unlimited/fields /silent /limited
echo "CPU time per request: an empty handler takes $(more /unlimited/empty '');" \
  "a limit without header fields takes $(more /silent /unlimited/empty) more, a limit with its two fields $(more /limited /unlimited/empty) more," \
  "the two fields without a limit $(more /unlimited/fields /unlimited/empty) more"
echo "CPU time of the limit in an allowed request with fields: $(more /limited /unlimited/fields)"

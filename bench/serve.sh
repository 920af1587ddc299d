#!/bin/sh
# Compares stint serve with a Redis that runs the same arithmetic as a script, by redis-benchmark, as
# docs/serve.md shows: by turns on one machine, with a new file in each turn, and the medians of the rounds.
#
#	./serve.sh [ROUNDS [REQUESTS]]
set -eu
cd "$(dirname "$0")"
rounds=${1:-5} requests=${2:-300000}

for tool in redis-server redis-cli redis-benchmark; do
  command -v $tool >/dev/null || { apt-get update -q && apt-get install -y -q redis-server redis-tools; }
done
dir=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -C .. -o "$dir/stint" ./cmd/stint
stint='CL.THROTTLE key:__rand_int__ 15 30 60'

# start PROGRAM LEVEL starts a server at $dir/s, with an empty file. $command is what a request is.
start() {
  rm -rf "$dir/data"
  mkdir "$dir/data"
  case $1 in
    stint)
      "$dir/stint" serve --db "$dir/data/limits.db" --listen "$dir/s" --durability "$2" 2>/dev/null &
      ;;
    redis)
      fsync=no
      [ "$2" = flushed ] || fsync=yes
      redis-server --port 0 --unixsocket "$dir/s" --dir "$dir/data" --save '' --appendonly $fsync --appendfsync always \
        --auto-aof-rewrite-percentage 0 >/dev/null &
      ;;
  esac
  server=$!
  until redis-cli -s "$dir/s" PING >/dev/null 2>&1; do kill -0 $server; sleep 0.1; done
  command=$stint
  [ "$1" = stint ] || command="EVALSHA $(redis-cli -s "$dir/s" SCRIPT LOAD "$(cat serve.lua)") 1 key:__rand_int__ 15 30 60"
}

stop() {
  kill $server
  wait $server 2>/dev/null || true
}

# rate OPTION... prints the requests in a second.
rate() {
  redis-benchmark -s "$dir/s" --csv -n "$requests" -r 100000 "$@" $command 2>/dev/null | tail -1 | awk -F '","' '{ print $2 }'
}

# compare LABEL LEVEL OPTION...
compare() {
  label=$1 level=$2
  shift 2
  : >"$dir/rates"
  for round in $(seq "$rounds"); do
    for program in $(shuf -e stint redis); do
      start "$program" "$level"
      echo "$program $(rate "$@")" >>"$dir/rates"
      stop
    done
  done
  median() { sed -n "s/^$1 //p" "$dir/rates" | sort -n | sed -n "$(((rounds + 1) / 2))p"; }
  echo "$(median stint) $(median redis) $label" |
    awk '{ s = $1; r = $2; $1 = $2 = ""; printf "%-48s stint %8.0f  Redis %8.0f  %.1f times\n", $0, s, r, s / r }'
}

compare '50 clients, pipelines of 16' flushed -c 50 -P 16
compare '50 clients, one command at a time' flushed -c 50
compare '64 clients, synced' synced -c 64
compare '64 clients, synced, pipelines of 16' synced -c 64 -P 16

#!/usr/bin/env bash
# The demo's other stage: two workers on one PostgreSQL store, one killed. Read by scripts/demo, whose words it uses.
set -euo pipefail

# The server lives as long as its input is open; `server` is that end of a pipe.
start_postgres() {
  mkfifo server.in
  : >server.out  # it is read before the server opens it
  "$root/scripts/postgres" <server.in >server.out 2>server.err &
  server_pid=$!
  exec {server}>server.in
  local i
  for i in $(seq 1200); do
    AETHERIS_STORE=$(cat server.out)
    [ -z "$AETHERIS_STORE" ] || break
    kill -0 "$server_pid" 2>/dev/null || fail "PostgreSQL did not start: $(cat server.err)"
    sleep 0.05
  done
  [ -n "$AETHERIS_STORE" ] || fail "PostgreSQL did not start"
  export AETHERIS_STORE
}

# start_worker NAME: waits until it works.
start_worker() {
  printf '%s$ aetheris worker refund.yaml --lease 3s --log text &%s\n' "$dim" "$plain"
  "$bin" worker refund.yaml --lease 3s --log text --json >"$1.out" 2>"$1.err" &
  worker_pids+=("$!")
  local i
  for i in $(seq 400); do
    [ ! -s "$1.out" ] || break
    kill -0 "${worker_pids[-1]}" 2>/dev/null || fail "the worker did not start: $(cat "$1.err")"
    sleep 0.05
  done
  echo "worker $(jq -r .worker "$1.out")"
}

# Five seconds after the end of a call the shop no longer applies it. Another worker waits for this long after the lease.
sed '/^    dedupe_window:/i\    grace: 5s' examples/refund.yaml >refund.yaml
start_shop
start_postgres
printf '%s' "$dim"
echo "folder  $work"
echo "shop    $SHOP_URL (process $shop_pid), journal shop.journal"
echo "store   $AETHERIS_STORE (process $server_pid), fsync on"
printf '%s' "$plain"

act "Two workers, one store, and kill -9 during a payment"
explain "Each worker claims jobs with a lease of three seconds and renews it."
start_worker one
start_worker two

explain "The shop is configured to pay the refund, write it to its request log, and delay the response."
silent "POST /refunds"
explain "A separate process creates a job and exits; one of the workers claims it."
shown aetheris run refund.yaml --job-id return-43 --input '{"order_id": "43", "replacement": "BOOK-5"}' --detach
python3 "$root/scripts/demo_check.py" await shop.journal return-43 "POST /refunds" || fail "no worker took the job"
holder=$(aetheris events return-43 --type job_running --json | jq -r '.events[-1].payload.worker_id')
victim=${holder##*:}
other=''
for pid in "${worker_pids[@]}"; do [ "$pid" = "$victim" ] || other=$pid; done
[ -n "$other" ] && [[ " ${worker_pids[*]} " == *" $victim "* ]] || fail "the job is held by $holder, none of ours"
explain "The lease holder is $holder. The shop has paid, and the response has not arrived:"
printf '%s$ kill -9 %s%s\n' "$dim" "$victim" "$plain"
{ kill -9 "$victim"; wait "$victim" || true; } 2>/dev/null
worker_pids=("$other")

explain "The lease expires. The other worker claims the job and sends the refund again with the same key:"
for i in $(seq 600); do
  state=$(aetheris job return-43 --json | jq -r .status)
  [ "$state" != completed ] || break
  sleep 0.1
done
[ "$state" = completed ] || fail "the job is $state: $(aetheris job return-43)"
shown aetheris events return-43 --type job_running
shown aetheris trace return-43
shown aetheris verify return-43
explain "The shop's request log:"
shown python3 examples/shop/table.py shop.journal

act "Proof"
explain "A separate check that reads only the shop's request log:"
record return-43 43 BOOK-5 '{"POST /refunds": [2]}'
python3 "$root/scripts/demo_check.py" judge shop.journal case-return-43 ||
  fail "something was repeated, is missing, or was not asked for"
explain "The other worker shuts down:"
printf '%s$ kill %s%s\n' "$dim" "$other" "$plain"
kill "$other"
code=0
wait "$other" || code=$?
worker_pids=()
[ "$code" = 0 ] || fail "the worker ended with exit code $code"
exec {server}>&-
wait "$server_pid" || true
server_pid=''

#!/usr/bin/env bash
# The demo with --code: an agent as a TypeScript function with OpenAI's client. Its server is killed while the job waits for
# an approval, its worker during the payment. Sourced by scripts/demo, whose functions it uses.
set -euo pipefail

# The scripted model, on the Node of the test packages; the project of the user: agent.ts, the SDK and OpenAI's client.
start_model() {
  : >model.out
  node examples/model-server/server.mjs --journal model.journal --scenario examples/model-server/scenarios/refund.json \
    >model.out 2>model.err &
  worker_pids+=("$!")
  local i
  for i in $(seq 1200); do
    MODEL_URL=$(sed -n 's/^listening on \(.*\)/\1\/v1/p' model.out)
    [ -z "$MODEL_URL" ] || break
    kill -0 "${worker_pids[-1]}" 2>/dev/null || fail "the model server did not start: $(cat model.err)"
    sleep 0.05
  done
  [ -n "$MODEL_URL" ] || fail "the model server did not start"
  export MODEL_URL MODEL_KEY=any-key MODEL=refund
}

make_project() {
  local folders
  folders=$(AETHERIS_ROOT=$root python3 -B -c "
import sys; sys.path[:0] = ['$root/scripts', '$root/tests']
import npm_packages, oracles
print(npm_packages.built_sdk(), oracles.modules() / 'node_modules')") ||
    fail "Node and the packages could not be installed: npm must reach its registry once"
  local sdk=${folders% *} modules=${folders#* }
  export PATH="$sdk/node_modules/.bin:$PATH"
  cp -r examples/code-refund refund
  mkdir refund/node_modules
  ln -s "$sdk" refund/node_modules/aetheris
  ln -s "$modules/openai" refund/node_modules/openai
}

start_server() {
  show aetheris serve agents.yaml --listen "$address"
  "$bin" serve agents.yaml --listen "$address" >>server.out 2>&1 &
  server_pid=$!
  local i
  for i in $(seq 400); do
    if curl_shop "http://$address/api/health" >/dev/null 2>&1; then return 0; fi
    kill -0 "$server_pid" 2>/dev/null || fail "the server did not start: $(cat server.out)"
    sleep 0.05
  done
  fail "the server does not answer: $(cat server.out)"
}

start_worker() {
  show_text "npx aetheris-worker agent.ts &"
  node node_modules/aetheris/dist/worker_main.js agent.ts >>worker.out 2>&1 &
  run_pid=$!
}

# killed WHAT PID: kill -9
killed() {
  printf '%s$ kill -9 %s%s            # the %s\n' "$dim" "$2" "$plain" "$1"
  { kill -9 "$2"; wait "$2" || true; } 2>/dev/null
}

# once WHAT CONDITION…: waits until the condition holds.
once() {
  local what=$1 i; shift
  for i in $(seq 2400); do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  fail "$what: $(tail -n 20 worker.out server.out)"
}
is_known() { curl_shop "http://$address/api/agents" 2>/dev/null | grep -q '"name":"refund"'; }
is() { [ "$(aetheris job refund-43 --json 2>/dev/null | jq -r .status)" = "$1" ]; }
paid() { grep -q '"kind":"effect","route":"POST /refunds"' "$work/shop.journal"; }

make_project
start_shop
start_model
address=127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cd refund
printf '%s' "$dim"
echo "folder  $work/refund: agent.ts, agents.yaml"
echo "shop    $SHOP_URL (process $shop_pid), journal shop.journal"
echo "model   $MODEL_URL (process ${worker_pids[-1]}): scripted; examples/code-refund describes how to use a real model"
printf '%s' "$plain"

act "Part 1: kill -9 of the server, while the job waits for an approval"
explain "The server records; the worker runs agent.ts:"
start_server
start_worker
once "the server does not know the agent" is_known
explain "A job. The model reads the order and requests the refund; the agent asks for an approval:"
body='{"agent": "refund", "id": "refund-43", "input": {"message": "Refund order 43, please."}}'
show curl -d "$body" "http://$address/api/jobs"
curl_shop -H 'content-type: application/json' -d "$body" "http://$address/api/jobs" >/dev/null
once "the job does not wait" is waiting
shown aetheris requests
killed server "$server_pid"
explain "A new server on the same store. The worker connects to it by itself:"
start_server

act "Part 2: kill -9 of the worker, during the payment"
explain "The shop is configured to pay, and to delay its response."
silent "POST /refunds"
approval=$(aetheris requests --json | jq -r '.requests[0].id')
shown aetheris approve "$approval" --note "as agreed"
once "the shop did not pay" paid
killed worker "$run_pid"
run_pid=''
explain "The shop has paid, and no result is recorded. A new worker runs agent.ts from its beginning. It is given what is
recorded: the answers of the model, the order, the approval. When the server knows that the first worker does not come
back (20 s), the refund is sent again with the same key:"
start_worker
once "the job does not complete" is completed
shown aetheris trace refund-43

act "Proof"
aetheris job refund-43 --json >../job.json
explain "The shop's request log:"
shown python3 ../examples/shop/table.py ../shop.journal
shown aetheris verify refund-43
explain "A separate check that reads only the job's result and the request logs:"
python3 -B "$root/scripts/demo_code_check.py" "$work" || fail "something was done twice, or not at all"

cat <<TEXT

${bold}Next${plain}
  examples/code-refund           the agent of this demo
  sdk/typescript/README.md       the TypeScript SDK
  docs/compare-code.md           for users of Temporal, Restate, DBOS and Inngest
TEXT

#!/usr/bin/env bash
# The demo's third stage: a model leads, with tools of MCP servers that others made, killed in the middle of an answer and of a
# tool, and a person who agrees to a payment. Read by scripts/demo, whose words it uses.
set -euo pipefail

# The model server, and the MCP servers of research.yaml, on the Node that they are tried on.
start_model() {
  node_folder=$(AETHERIS_ROOT=$root python3 -B -c "import sys; sys.path.insert(0, '$root/tests'); import oracles; print(oracles.node().parent)") ||
    fail "Node and the MCP servers could not be installed: npm must reach its registry once"
  export PATH="$node_folder:$PATH"
  mkdir scenarios
  # The third answer is a long time coming, the first time.
  jq '.turns[2].fail = {stall_ms: 600000}' examples/model-server/scenarios/research.json >scenarios/research.json
  cp examples/model-server/scenarios/refund.json scenarios/
  node examples/model-server/server.mjs --journal asked.jsonl --scenario scenarios/research.json scenarios/refund.json \
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
  export MODEL_URL MODEL_KEY=any-key
}

# in_background WORD…: a run of aetheris that is to be killed.
in_background() {
  printf '%s$ %s &%s\n' "$dim" "$(command_line aetheris "$@")" "$plain"
  "$bin" "$@" >run.out 2>run.err &
  run_pid=$!
}

# once CONDITION…: waits until a command succeeds while the run is under way, then kills the run.
killed_once() {
  local i
  for i in $(seq 1200); do
    if "$@"; then break; fi
    kill -0 "$run_pid" 2>/dev/null || fail "the run ended before it was killed: $(cat run.out run.err)"
    sleep 0.05
  done
  "$@" || fail "it did not come to where it was to be killed"
  printf '%s$ kill -9 %s%s\n' "$dim" "$run_pid" "$plain"
  { kill -9 "$run_pid"; wait "$run_pid" || true; } 2>/dev/null
  run_pid=''
}
third_question() { [ -f asked.jsonl ] && jq -se 'any(.[]; .model == "research" and .turn == 3)' asked.jsonl >/dev/null; }
paid() { grep -q '"kind":"effect","route":"POST /refunds"' shop.journal; }

cp -r examples/agents agents
start_shop
start_model
printf '%s' "$dim"
echo "folder  $work"
echo "shop    $SHOP_URL (process $shop_pid), journal shop.journal"
echo "model   $MODEL_URL (process ${worker_pids[-1]}), journal asked.jsonl: it follows a script; examples/agents say how to ask a real one"
printf '%s' "$plain"

act "Act 1: a model with the tools of two MCP servers, killed in the middle of an answer"
mkdir papers
echo "Bees dance." >papers/bees.txt
export FOLDER=$work/papers MEMORY=$work/memory.jsonl
research=(run agents/research.yaml --job-id papers --input "{\"message\": \"Report on the folder $FOLDER\"}")
export MODEL=research
say "The model looks around and reads a file. It is asked for the third time, and thinks; the runtime is killed."
in_background "${research[@]}"
killed_once third_question
say "Two answers and three results are in the log. They are read back; only the third question is put again:"
shown aetheris "${research[@]}"
shown aetheris trace papers
shown cat papers/report.md memory.jsonl
echo

act "Act 2: a person agrees, and kill -9 in the middle of the payment"
export MODEL=refund
refund=(run agents/refund_agent.yaml --job-id back-43)
line=(aetheris "${refund[@]}" --input '{"message": "Refund order 43, please."}')
show "${line[@]}"
code=0
"${line[@]}" || code=$?
[ "$code" = 4 ] || fail "expected exit code 4, got $code"
if paid; then fail "it was paid before anybody agreed"; fi
approval=$(aetheris approvals --json | jq -r '.approvals[0].id')
shown aetheris approve "$approval" --note "as agreed"
say "The shop will pay, and then keep silent."
silent "POST /refunds"
in_background "${refund[@]}"
killed_once paid
say "The money has gone, and no answer came. It is sent again under the key of the first time, which the shop knows:"
shown aetheris "${refund[@]}"
shown aetheris trace back-43
shown python3 examples/shop/table.py shop.journal

act "Proof"
shown aetheris verify papers
shown aetheris verify back-43
say "And the judge, who believes the journals of the model and the shop, the folder and the memory:"
python3 -B "$root/scripts/demo_agent_check.py" "$work" || fail "something was done twice, or not at all"

cat <<TEXT

${bold}Where to look next${plain}
  examples/agents/                   the agents you saw
  docs/agents-in-ten-minutes.md      the same by hand
  docs/agents-file.md, docs/mcp.md   all that they can be told
TEXT

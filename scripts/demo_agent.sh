#!/usr/bin/env bash
# The demo with --agent: a loop with a model and published MCP servers, killed during an answer and during a tool call, and a
# payment that an operator approves. Sourced by scripts/demo, whose functions it uses.
set -euo pipefail

# The model server, and the MCP servers of research.yaml, on the Node that they are tried on.
start_model() {
  node_folder=$(AETHERIS_ROOT=$root python3 -B -c "import sys; sys.path.insert(0, '$root/tests'); import oracles; print(oracles.node().parent)") ||
    fail "Node and the MCP servers could not be installed: npm must reach its registry once"
  export PATH="$node_folder:$PATH"
  mkdir scenarios
  # The third answer stops in its middle for ten minutes, the first time.
  jq '.turns[2] += {text: "I have read it. It is worth remembering, so I write it down.", fail: {stall_ms: 600000, stall_after: 9}}' \
    examples/model-server/scenarios/research.json >scenarios/research.json
  cp examples/model-server/scenarios/refund.json scenarios/
  : >model.out  # it is read before the server's own process opens it
  node examples/model-server/server.mjs --journal model.journal --scenario scenarios/research.json scenarios/refund.json \
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

# on_a_terminal WORD…: the same, with the words of the model as they come, in the file `shown`.
on_a_terminal() {
  printf '%s$ %s &%s\n' "$dim" "$(command_line aetheris "$@")" "$plain"
  local line i
  printf -v line '%q ' "$bin" "$@"
  script -qefc "exec $line" shown </dev/null >/dev/null 2>&1 &
  script_pid=$!
  for i in $(seq 400); do
    read -r run_pid <"/proc/$script_pid/task/$script_pid/children" || true  # no line end
    [ -z "$run_pid" ] || return 0
    sleep 0.05
  done
  fail "the run did not start"
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
    kill -0 "$run_pid" 2>/dev/null || fail "the run ended before it was killed: $(cat run.out run.err shown 2>/dev/null)"
    sleep 0.05
  done
  "$@" || fail "it did not come to where it was to be killed"
  printf '%s$ kill -9 %s%s\n' "$dim" "$run_pid" "$plain"
  { kill -9 "$run_pid"; wait "$run_pid" || true; } 2>/dev/null
  run_pid=''
}
half_an_answer() { grep -q 'I have read it' shown; }
paid() { grep -q '"kind":"effect","route":"POST /refunds"' shop.journal; }

cp -r examples/agents agents
start_shop
start_model
printf '%s' "$dim"
echo "folder  $work"
echo "shop    $SHOP_URL (process $shop_pid), journal shop.journal"
echo "model   $MODEL_URL (process ${worker_pids[-1]}), journal model.journal: scripted; examples/agents describe how to use a real model"
printf '%s' "$plain"

act "Part 1: a model with the tools of two MCP servers, killed during a response"
mkdir papers
echo "Bees dance." >papers/bees.txt
export FOLDER=$work/papers MEMORY=$work/memory.jsonl
research=(run agents/research.yaml --job-id papers --input "{\"message\": \"Report on the folder $FOLDER\"}")
export MODEL=research
explain "The model lists a folder and reads a file. The runtime is killed during the third model response."
on_a_terminal "${research[@]}"
killed_once half_an_answer
wait "$script_pid" || true
explain "The output before the kill:"
grep -a 'I have read it' shown | tail -n 1 | sed 's/\x1b\[[0-9;?]*[a-zA-Z]//g' | tr -d '\r'
explain "A partial response is not recorded. The log ends with the model call:"
show_text "aetheris events papers | tail -n 3"
aetheris events papers --json >half.json
aetheris events papers | cut -c 1-110 | tail -n 3
explain "Two responses and three results are in the log. They are replayed; only the third model call is sent again:"
shown aetheris "${research[@]}"
shown aetheris trace papers
shown cat papers/report.md memory.jsonl
echo

act "Part 2: an approval, kill -9 during the payment, and a budget"
export MODEL=refund
refund=(run agents/refund_agent.yaml --job-id refund-43)
# stops LINE…: a run that ends because an operator must act first (exit code 4).
stops() {
  local code=0
  show "$@"
  "$@" || code=$?
  [ "$code" = 4 ] || fail "expected exit code 4, got $code"
}
explain "The agent allows 16 model calls; this job allows two."
stops aetheris "${refund[@]}" --budget model_calls=2 --input '{"message": "Refund order 43, please."}'
if paid; then fail "it was paid before the approval"; fi
approval=$(aetheris approvals --json | jq -r '.approvals[0].id')
shown aetheris approve "$approval" --note "as agreed"
explain "The shop is configured to pay and delay the response."
silent "POST /refunds"
in_background "${refund[@]}"
killed_once paid
explain "The shop has paid, but no response arrived. The call is sent again with the same key. The next model call would exceed
the budget, so the job parks:"
stops aetheris "${refund[@]}"
show_text "aetheris job refund-43 --json | jq -c .budget"
aetheris job refund-43 --json | jq -c .budget
explain "The operator raises the limit, and the job resumes. The payment is replayed:"
shown aetheris budget refund-43 --model-calls 4 --note "it may say so"
shown aetheris "${refund[@]}"
shown aetheris trace refund-43
shown python3 examples/shop/table.py shop.journal

act "Proof"
shown aetheris verify papers
shown aetheris verify refund-43
explain "A separate check that reads only the request logs, the folder and the memory:"
python3 -B "$root/scripts/demo_agent_check.py" "$work" || fail "something was done twice, or not at all"

cat <<TEXT

${bold}Next${plain}
  examples/agents/                   the agents of this demo
  docs/agents-in-ten-minutes.md      the same steps manually
  docs/agents-file.md, docs/mcp.md   the agents file and MCP tools
TEXT

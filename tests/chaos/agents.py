"""The agents of a chaos run: what they do to the shop, and what a completed job of each must have done there."""

TEXT = r"""
aetheris: 1
tools:
  look:    { http: { method: GET, url: "${ env.SHOP_URL }/look/${ .args.id }" }, effect: read, timeout: 2s, grace: 3s, retry: { max_attempts: 20, initial_backoff: 50ms, max_backoff: 1s, retry_on: [connect, timeout, reset, 5xx] } }
  charge:
    http: { method: POST, url: "${ env.SHOP_URL }/idempotent/charge" }
    effect: idempotent
    timeout: 2s
    grace: 3s
    compensate: { tool: refund, args: { charge: "${ .result.id }" } }
    retry: &retry
  label:   { http: { method: POST, url: "${ env.SHOP_URL }/idempotent/label" }, effect: idempotent, timeout: 2s, grace: 3s, RETRY }
  receipt: { http: { method: POST, url: "${ env.SHOP_URL }/idempotent/receipt" }, effect: idempotent, timeout: 2s, grace: 3s, RETRY }
  refund:  { http: { method: POST, url: "${ env.SHOP_URL }/idempotent/refund" }, effect: idempotent, timeout: 2s, grace: 3s, RETRY }
  mail:
    http: { method: POST, url: "${ env.SHOP_URL }/once/mail" }
    effect: at_most_once
    on_in_doubt: park
    timeout: 2s
    grace: 3s
    retry: { max_attempts: 20, initial_backoff: 50ms, max_backoff: 1s, retry_on: [connect, 429] }
  letter:
    http: { method: POST, url: "${ env.SHOP_URL }/once/letter" }
    effect: at_most_once
    approval: required
    timeout: 2s
    grace: 3s
    retry: { max_attempts: 20, initial_backoff: 50ms, max_backoff: 1s, retry_on: [connect, 429] }
  ship:
    http: { method: POST, url: "${ env.SHOP_URL }/once/ship" }
    effect: at_most_once
    on_in_doubt: probe
    probe: { tool: find, args: { key: "${ .call.external_key }" }, happened: "${ .result.found }" }
    timeout: 2s
    grace: 3s
    retry: { max_attempts: 20, initial_backoff: 50ms, max_backoff: 1s, retry_on: [connect, 429] }
  find:    { http: { method: GET, url: "${ env.SHOP_URL }/find?key=${ .args.key }" }, effect: read, timeout: 2s, grace: 3s, RETRY }
  print:
    command: ["sh", "-c", "echo \"$AETHERIS_IDEMPOTENCY_KEY $AETHERIS_TRY\" >> \"$0\"", "${ env.PRINTS }"]
    local: true
    effect: at_most_once
    on_in_doubt: park
    timeout: 5s
    grace: 3s
  stop:    { command: ["false"], effect: read, timeout: 5s, grace: 3s }
agents:
  five:
    plan:
      - { id: charge, tool: charge, args: { n: "${ .input.n }" } }
      - { id: mail, tool: mail, needs: [charge], args: { about: "${ .steps.charge.id }" } }
      - { id: label, tool: label, needs: [mail], args: { n: "${ .input.n }" } }
      - { id: ship, tool: ship, needs: [label], args: { label: "${ .steps.label.id }" } }
      - { id: receipt, tool: receipt, needs: [ship], args: { of: "${ .steps.ship.id }" } }
    output: { charge: "${ .steps.charge.id }", receipt: "${ .steps.receipt.id }" }
  fan:
    plan:
      - { id: look, tool: look, args: { id: "${ .job.id }" } }
      - { id: labels, needs: [look], map: "${ .input.list }", as: n, max_parallel: 3, do: { tool: label, args: { n: "${ .n }", size: "${ .steps.look.size }" } } }
      - { id: receipt, tool: receipt, needs: [labels], args: { labels: "${ .steps.labels | map(.id) }" } }
  asks:
    plan:
      - { id: charge, tool: charge, args: { n: "${ .input.n }" } }
      - { id: go, wait: { type: signal, key: "go-${ .job.id }" }, needs: [charge] }
      - { id: mail, tool: mail, needs: [go], args: { said: "${ .steps.go }" } }
    output: "${ .steps.go }"
  approves:
    plan:
      - { id: label, tool: label, args: { n: "${ .input.n }" } }
      - { id: sure, wait: { type: human, key: "sure-${ .job.id }", on_reject: continue }, needs: [label] }
      - { id: letter, tool: letter, needs: [sure], args: { n: "${ .input.n }" } }
  sleeps:
    plan:
      - { id: nap, wait: { type: timer, for: 300ms } }
      - { id: ship, tool: ship, needs: [nap], args: { n: "${ .input.n }" } }
      - { id: again, wait: { type: timer, for: 700ms }, needs: [ship] }
      - { id: receipt, tool: receipt, needs: [again], args: { of: "${ .steps.ship.id }" } }
  prints:
    plan:
      - { id: print, tool: print }
      - { id: receipt, tool: receipt, needs: [print], args: { n: "${ .input.n }" } }
  undone:
    plan:
      - { id: charge, tool: charge, args: { n: "${ .input.n }" } }
      - { id: stop, tool: stop, needs: [charge] }
  cancels:
    plan:
      - { id: charge, tool: charge, args: { n: "${ .input.n }" } }
      - { id: never, wait: { type: signal, key: "never-${ .job.id }" }, needs: [charge] }
      - { id: mail, tool: mail, needs: [never], args: { n: "${ .input.n }" } }
""".replace("retry: &retry", "RETRY").replace(
    "RETRY", "retry: { max_attempts: 40, initial_backoff: 50ms, max_backoff: 1s, retry_on: [connect, timeout, reset, 5xx] }")

# The number of jobs of each agent, of a hundred.
SHARES = {"five": 72, "fan": 5, "asks": 7, "approves": 4, "sleeps": 4, "prints": 1, "undone": 3, "cancels": 4}
FAN = [1, 2, 3, 4]

# What a completed job has done: effects by tool.
COMPLETED = {
    "five": {"charge": 1, "mail": 1, "label": 1, "ship": 1, "receipt": 1},
    "fan": {"label": len(FAN), "receipt": 1},
    "asks": {"charge": 1, "mail": 1},
    "approves": {"label": 1, "letter": 1},
    "sleeps": {"ship": 1, "receipt": 1},
    "prints": {"print": 1, "receipt": 1},
}
# Agents whose jobs never complete: their effects are compensated.
UNDONE = {"undone": "failed", "cancels": "cancelled"}

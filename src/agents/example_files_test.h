// Agents files that several tests load.
#pragma once

#include <string_view>

namespace ae::agents::testing {

inline constexpr std::string_view kShop = R"(aetheris: 1
tools:
  get_order:
    http: { method: GET, url: "${ env.SHOP }/orders/${ .args.id }" }
    effect: read
  charge:
    http: { method: POST, url: "${env.SHOP}/charges", headers: { Authorization: "Bearer secret:PAY" } }
    effect: idempotent
    timeout: 90s
    retry: { max_attempts: 4, retry_on: [timeout, 429, "5xx"] }
    args_schema: { type: object, required: [amount] }
  mail: { command: [sendmail, "${ .args.to }"], output: json, output_max: 64KiB }
  unused: { native: echo }
agents:
  refund:
    description: Gives money back
    input_schema: { type: object, required: [order_id] }
    labels: { team: money, "a.b/c": d }
    deadline: 120m
    max_attempts: 3
    plan:
      - { id: order, tool: get_order, args: { id: "${ .input.order_id }" } }
      - { id: ok, wait: { type: signal, key: "approve-${ .input.order_id }", expires: 1440m, on_expire: continue }, needs: [order], when: "${ .steps.order.total > 100 }" }
      - { id: pause, wait: { type: timer, for: 60s } }
      - { id: at, wait: { type: timer, until: "2030-01-01T00:00:00+00:00" } }
      - { id: charge, tool: charge, needs: [order, ok], args: { amount: "${ .steps.order.total }" }, on_error: continue }
      - { id: each, map: "${ .steps.order.items }", as: item, needs: [charge], on_item_error: collect, do: { tool: mail, args: { to: "${ .item.to }" } } }
      - { id: few, map: [1, 2], as: n, max_parallel: 2, on_item_error: fail, do: { tool: mail, args: { to: "${ .n }", args: {} } }, when: true, on_error: fail, needs: [] }
    output: { charge: "${ .steps.charge }", all: "${ .steps }" }
)";

inline constexpr std::string_view kModels = R"(aetheris: 1
models:
  main: { provider: openai, base_url: "${ env.SHOP }/v1/", api_key: "secret:KEY", model: gpt-5-mini, max_tokens: 400, temperature: 0.5, timeout: 1m }
  old: { provider: openai, base_url: "http://h:1/v1", model: small, max_tokens_name: max_tokens, retry: { max_attempts: 3, retry_on: [429, reset] } }
  unused: { provider: openai, base_url: "https://h/v1", model: x }
agents:
  a:
    plan:
      - { id: note, llm: { model: main, system: You are brief., prompt: "Note on ${ .input.x }" } }
      - id: more
        needs: [note]
        llm:
          model: old
          temperature: 1
          messages: [{ role: user, content: "a" }, { role: assistant, content: "${ .steps.note.text }" }]
      - { id: all, llm: { model: old, messages: "${ .input.messages }" }, when: false }
      - { id: each, map: [1, 2], do: { llm: { model: main, max_tokens: 7, prompt: "${ .item }" } } }
)";

inline constexpr std::string_view kProviders = R"(aetheris: 1
models:
  claude: { provider: anthropic, base_url: "https://h/v1", api_key: "secret:KEY", model: m, price: { input: 3, output: "15.00", cached: 0.3 } }
  plain: { provider: anthropic, base_url: "https://h/v1", api_key: "secret:KEY", model: m }
agents:
  a:
    plan:
      - id: look
        llm:
          model: claude
          max_tokens: 9
          schema: { type: object, additionalProperties: false }
          messages:
            - role: user
              content: [{ type: text, text: "What is ${ .input.x }?" }, { type: image, url: "https://h/${ .input.x }.png" }]
      - { id: say, llm: { model: plain, prompt: Hi } }
)";

inline constexpr std::string_view kCode = R"(aetheris: 1
tools:
  get_order: { http: { method: GET, url: "${ env.SHOP }/orders/${ .args.id }" }, effect: read }
  pay_back:
    description: Pays an order back
    worker: refund_order
    effect: idempotent
    timeout: 10s
    grace: 5s
    dedupe_window: unlimited
    retry: { max_attempts: 4, retry_on: [connect, timeout, 5xx] }
    on_in_doubt: probe
    probe: { tool: find_payment, args: { key: "${ .call.external_key }" }, happened: "${ .result.payment }" }
    compensate: { tool: take_back, args: { id: "${ .result.id }" } }
    changes: [ { type: payment, id: "${ .result.id }", op: create } ]
    definite_failures: [409]
    output_max: 64KiB
    heartbeat_timeout: 2s
    args_schema: { type: object, required: [order], properties: { order: { type: string }, amount: { type: number } } }
    result_schema: { type: object, required: [id] }
    approval: "${ .args.amount > 100 }"
    approval_expires: 1h
    capabilities: [payments]
  find_payment: { worker: find_payment, effect: read }
  take_back: { worker: take_back, effect: idempotent }
  mail: { worker: mail, retry: { max_attempts: 2, retry_on: [mailbox_full, 450] }, definite_failures: [450] }
  unused: { worker: unused }
models:
  main: { provider: openai, base_url: "http://h:1/v1", model: small, price: { input: 1, output: 2 } }
policies:
  - { tools: ["run:*"], when: "${ (.args.amount // 0) > 9 }", action: require_approval, expires: 2h }
  - { tools: ["fetch:at_most_once"], action: deny, reason: use the tools }
agents:
  refund:
    description: Gives money back
    input_schema: { type: object, required: [order] }
    output_schema: { type: object, required: [refund] }
    labels: { team: money }
    deadline: 7d
    max_attempts: 5
    budget: { cost: "1.00", tool_calls: 50 }
    confirm: warn
    queue: slow
    required_capabilities: [eu]
    code: { language: typescript, version: 1.4.0, uses: [pay_back, get_order, mail, "model:main", mail], parallel: 8, on_exception: fail }
  small:
    code: { language: python }
)";

}  // namespace ae::agents::testing

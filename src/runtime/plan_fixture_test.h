// Plans for the tests of the runtime, from their nodes as JSON with single quotes.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/ids.h"
#include "json/json.h"
#include "plan/plan.h"

namespace ae::runtime::testing {

inline const JobId kJob("job-1");

inline Value json(std::string_view text) {
  std::string quoted(text);
  std::ranges::replace(quoted, '\'', '"');
  auto value = parse_json(quoted);
  AE_CHECK(value.has_value(), quoted);
  return *value;
}

// A plan with these nodes and the tool `do`, whose effect class is `effect`.
inline std::shared_ptr<const engine::Plan> plan(std::string_view effect, std::string_view nodes) {
  const std::string in_doubt = effect == "at_most_once" ? "park" : "resend";
  Value graph = json(
      "{'schema':1, 'nodes': " + std::string(nodes) + ", 'tools': {'do': {'effect':'" +
      std::string(effect) + "', 'on_in_doubt':'" + in_doubt +
      "', 'timeout':'600s', 'grace':'30s', 'dedupe_window':'24h', 'version':'0123456789abcdef',"
      " 'retry':{'max_attempts':1, 'initial_backoff':'200ms', 'max_backoff':'10s',"
      " 'multiplier':2, 'retry_on':['connect']}}}}");
  auto compiled = engine::Plan::compile(graph);
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

// As above; `do` is at_most_once, has the probe `ask` and the compensation `undo`.
inline std::shared_ptr<const engine::Plan> plan_with_probe_and_undo(std::string_view nodes) {
  const std::string policy =
      "'timeout':'10s', 'grace':'30s', 'dedupe_window':'24h', 'version':'0123456789abcdef',"
      "'retry':{'max_attempts':1, 'initial_backoff':'200ms', 'max_backoff':'10s',"
      "'multiplier':2, 'retry_on':['connect']}";
  auto compiled = engine::Plan::compile(
      json("{'schema':1, 'nodes': " + std::string(nodes) +
           ", 'tools': {'do': {'effect':'at_most_once', 'on_in_doubt':'probe',"
           "'probe': {'tool':'ask', 'args':{'key':'${ .call.external_key }'}, 'happened':'${ "
           ".result }'},"
           "'compensate': {'tool':'undo', 'args':{'what':'${ .result }'}}," +
           policy + "}, 'ask': {'effect':'read', 'on_in_doubt':'resend'," + policy +
           "}, 'undo': {'effect':'idempotent', 'on_in_doubt':'resend'," + policy + "}}}"));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

// Nodes of plans.
inline constexpr std::string_view kOneCall = "[{'id':'a', 'kind':'tool', 'tool':'do'}]";
inline constexpr std::string_view kWaitAndCall =
    "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k', 'expires':'10s',"
    " 'on_expire':'continue'}}, {'id':'a', 'kind':'tool', 'tool':'do'}]";
// A job that waits for `k` after its worker released it.
inline constexpr std::string_view kTwoWaits =
    "[{'id':'v', 'kind':'wait', 'wait': {'type':'signal', 'key':'j'}},"
    " {'id':'w', 'kind':'wait', 'needs':['v'], 'wait': {'type':'signal', 'key':'k'}}]";

}  // namespace ae::runtime::testing

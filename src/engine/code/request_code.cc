#include "engine/code/request_code.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "engine/code/code.h"

namespace ae::engine {

Status check_delivery(const State& state, const Step& request, std::uint64_t delivered) {
  const CodeProgress& code = *state.steps[request.node].code;
  if (code.outcomes.may_add(delivered)) return {};
  return fail(Code::input_invalid, "the success of \"{}\" cannot be number {} of {} outcomes",
              request.request->position, delivered, code.outcomes.size() + 1);
}

namespace {

// The scopes that begin and end in an advance, and how many outcomes the log has after it.
struct ScopesOf {
  explicit ScopesOf(const Advance& advance) {
    for (const Advance::Item& item : advance.items) {
      if (const auto* const one = std::get_if<Advance::ScopeBegun>(&item))
        begun.insert(one->position);
      if (const auto* const one = std::get_if<Advance::ScopeEnded>(&item))
        ended.insert(one->position);
    }
  }
  bool has_ended_around(std::string_view position) const {
    return !ended.empty() && any_scope_around(position, [&](std::string_view scope) {
      return ended.contains(scope);
    });
  }

  std::unordered_set<std::string_view> begun, ended;
};

Status check_request(const State& state, const Step& code, const NewRequest& request,
                     std::uint64_t outcomes) {
  // A request that was started and has no call yet is made again by a new routine.
  const Step* const known =
      state.find_step(state.request_step_id(code, request.position, request.kind));
  const bool is_free = !has_request_at(state, code, request.position) ||
                       (known != nullptr && !known->request->ended);
  if (!is_position(request.position) || !is_free ||
      is_in_ended_scope(state, code, request.position)) {
    return fail(Code::input_invalid, "the request \"{}\" cannot be made here",
                std::string_view(request.position).substr(0, 100));
  }
  const auto& granted = state.node_of(code).code->tools;
  const bool calls = request.kind == NodeKind::tool || request.kind == NodeKind::llm;
  const bool is_granted =
      calls ? std::ranges::find(granted, request.tool) != granted.end() &&
                  state.plan->tools[request.tool].is_model() == (request.kind == NodeKind::llm)
            : request.kind == NodeKind::wait;
  if (!is_granted) {
    return fail(Code::tool_not_granted, "the plan does not grant what \"{}\" requests",
                request.position);
  }
  if (request.delivered > outcomes) {
    return fail(Code::input_invalid, "{} outcomes are counted; the log has {}", request.delivered,
                outcomes);
  }
  return {};
}

}  // namespace

Status check_advance(const State& state, const Step& code, const Advance& advance,
                     std::span<const NewRequest> requests, std::span<const NewRequest> wanted) {
  if (code.code->open + wanted.size() + requests.size() > kOpenRequestsMax) {
    return fail(Code::input_invalid, "code has at most {} requests without an outcome",
                kOpenRequestsMax);
  }
  const ScopesOf scopes(advance);
  const std::uint64_t outcomes = code.code->outcomes.size() + scopes.ended.size();
  std::unordered_set<std::string_view> taken;
  const auto take = [&](std::string_view position) {
    if (!scopes.begun.contains(position) && !scopes.has_ended_around(position) &&
        taken.insert(position).second) {
      return Status();
    }
    return Status(fail(Code::input_invalid, "the request \"{}\" cannot be made here",
                       position.substr(0, 100)));
  };
  for (const NewRequest& request : wanted) AE_TRY(take(request.position));
  for (const NewRequest& request : requests) {
    AE_TRY(take(request.position));
    AE_TRY(check_request(state, code, request, outcomes));
  }
  return {};
}

}  // namespace ae::engine

#include "inspect/requests_view.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "engine/state/action.h"
#include "engine/state/view_values.h"
#include "inspect/request_kind.h"
#include "inspect/view.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr std::size_t kIdDigits = 16;

struct Parts {
  std::string id;
  std::string_view kind;
  Value reason, opened_at, expires_at;
  std::vector<Value> actions;
};

// `detail`: the entry of the request in the list of its kind.
Value request_view(const State& state, Parts parts, const Value& detail) {
  return Value::object({{"actions", Value::array(std::move(parts.actions))},
                        {field::agent, state.agent},
                        {field::detail, detail},
                        {field::expires_at, std::move(parts.expires_at)},
                        {"id", std::move(parts.id)},
                        {"item", detail["item"]},
                        {"job_id", state.job.text},
                        {field::kind, parts.kind},
                        {field::labels, state.labels},
                        {field::node_id, detail[field::node_id]},
                        {field::opened_at, std::move(parts.opened_at)},
                        {field::reason, std::move(parts.reason)},
                        {field::step_id, detail[field::step_id]},
                        {"tool", detail["tool"]}});
}

std::vector<Value> approval_actions(const Value& approval) {
  if (const Value* const actions = approval.find("actions"))
    return {actions->items().begin(), actions->items().end()};
  const Value& question = approval["question"];
  std::vector<Member> arguments{{"id", approval["id"]}};
  if (question.text("mode") == "form") arguments.emplace_back("schema", question["schema"]);
  return {action(act::kApprove, std::move(arguments)),
          action(act::kReject, {{"id", approval["id"]}})};
}

}  // namespace

std::vector<Value> requests_view(const State& state) {
  std::vector<Value> requests;
  for (const Value& approval : approvals_view(state)) {
    requests.push_back(request_view(state,
                                    {.id = std::string(approval.text("id")),
                                     .kind = approval.text(field::kind),
                                     .reason = approval[field::reason],
                                     .opened_at = approval[field::opened_at],
                                     .expires_at = approval[field::expires_at],
                                     .actions = approval_actions(approval)},
                                    approval));
  }
  for (const Value& call : in_doubt_view(state)) {
    const auto actions = call["actions"].items();
    if (actions.empty()) continue;  // given up, or an outcome is noted
    requests.push_back(
        request_view(state,
                     {.id = fmt::format("{}.{}", state.job.text,
                                        call.text(field::idempotency_key).substr(0, kIdDigits)),
                      .kind = to_text(RequestKind::unknown_outcome),
                      .reason = call[field::reason],
                      .opened_at = call["since"],
                      .expires_at = {},
                      .actions = {actions.begin(), actions.end()}},
                     call));
  }
  if (state.budget.exceeded && !is_terminal(state.status)) {
    const ExceededLimit& exceeded = *state.budget.exceeded;
    const Value raise = raise_action(state, {&exceeded, 1});
    requests.push_back(request_view(
        state,
        {.id = fmt::format("{}.budget", state.job.text),
         .kind = to_text(RequestKind::budget),
         .reason = state.parked_reason.empty() ? Value() : Value(state.parked_reason),
         .opened_at = state.parked_since ? Value(ae::to_text(*state.parked_since)) : Value(),
         .expires_at = {},
         .actions = raise.is_null() ? std::vector<Value>() : std::vector<Value>{raise}},
        Value::object(
            {{"limit", to_text(exceeded.limit)}, {"requested", number(exceeded.requested)}})));
  }
  return requests;
}

}  // namespace ae::engine

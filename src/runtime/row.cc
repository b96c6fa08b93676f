#include "runtime/row.h"

#include <fmt/core.h>

#include <algorithm>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::runtime {

namespace {

// What an operator may be asked for. A call with an unknown outcome counts until the end of the
// job, also while its retry runs.
store::PendingKinds pending_of(const engine::State& state) {
  namespace pending = store::pending;
  if (engine::is_terminal(state.status))
    return state.unknown_calls().empty() ? 0 : pending::unknown_outcome;
  store::PendingKinds kinds = 0;
  if (state.had_unknown_outcome || !state.earlier_unknown.empty())
    kinds |= pending::unknown_outcome;
  if (state.budget.exceeded) kinds |= pending::budget;
  if (state.ending) return kinds;  // nothing else is accepted any more
  if (state.open_requests.calls > 0) kinds |= pending::call;
  if (state.open_requests.waits > 0) kinds |= pending::wait;
  if (state.open_requests.questions > 0) kinds |= pending::question;
  if (state.escalated > 0) kinds |= pending::confirmation;
  return kinds;
}

}  // namespace

store::RowState row_of(const engine::State& state) {
  store::RowState row;
  row.status = to_text(state.status);
  if (state.status == engine::JobStatus::queued) row.not_before = state.not_before;
  if (!engine::is_terminal(state.status)) row.wake_at = state.next_due();
  row.pending = pending_of(state);
  return row;
}

store::Summary summary_of(const engine::State& state) {
  return {.error = state.error ? state.error->code : std::string(),
          .kind = std::string(engine::summary_kind(state)),
          .cost_micros = state.models.cost_micros,
          .changed_at = state.updated_at,
          .body = engine::summary_text(state)};
}

std::optional<store::Summary> changed_summary(const engine::State& state,
                                              const engine::SummaryKey& before) {
  if (engine::summary_key(state) == before) return std::nullopt;
  return summary_of(state);
}

Value labels_value(const Labels& labels) {
  std::vector<Member> members;
  members.reserve(labels.size());
  for (const auto& [key, value] : labels) members.emplace_back(key, value);
  return Value::object(std::move(members));
}

Labels labels_of(const Value& object) {
  Labels labels;
  if (!object.is_object()) return labels;
  for (const auto& [key, value] : object.members()) {
    if (value.is_string()) labels.emplace_back(key, value.as_string());
  }
  return labels;
}

Hash request_hash(std::string_view blind, const JobRequest& request) {
  Value identity = Value::object({{field::agent, request.agent},
                                  {field::input, request.input},
                                  {field::labels, request.labels}});
  if (!request.forked_from.is_null())
    identity = identity.with(field::forked_from, request.forked_from);
  if (!request.explicit_options.is_null())
    identity = identity.with(field::asked, request.explicit_options);
  return *hash_from_hex(blinded_hash(blind, canonical(identity)));
}

const JobCreated& job_created_of(const Event& first) {
  static const JobCreated none;
  const auto* created = as<JobCreated>(first);
  return created != nullptr ? *created : none;
}

bool is_blinded(const JobCreated& created) { return !created.blind.is_null(); }

std::optional<std::string> blind_of(const JobCreated& created) {
  if (created.blind.erased || !created.blind.value.is_string()) return std::nullopt;
  return created.blind.value.as_string();
}

JobRequest request_of(const JobCreated& created) {
  return {.agent = created.agent,
          .input = created.input.value,
          .labels = labels_value(labels_of(created.labels)),
          .forked_from = created.forked_from.json(),
          .explicit_options = created.asked};
}

SameRequest same_request(const Event& first, const Hash& known, const JobRequest& request) {
  const JobCreated& created = job_created_of(first);
  if (!created.blind.erased) {
    const bool same = request_hash(blind_of(created).value_or(""), request) == known;
    return same ? SameRequest::yes : SameRequest::no;
  }
  const JobRequest original = request_of(created);
  const bool same_options = original.agent == request.agent && original.labels == request.labels &&
                            original.forked_from == request.forked_from &&
                            original.explicit_options == request.explicit_options;
  if (!same_options) return SameRequest::no;
  if (created.input.erased) return SameRequest::input_erased;
  return original.input == request.input ? SameRequest::yes : SameRequest::no;
}

std::optional<Hash> request_hash_of(const Event& first) {
  const JobCreated& created = job_created_of(first);
  if (created.input.erased || created.blind.erased) return std::nullopt;
  return request_hash(blind_of(created).value_or(""), request_of(created));
}

std::string version_capability(std::string_view agent, std::string_view version) {
  return fmt::format("execution_version:{}={}", agent, version);
}

std::vector<std::string> needed_capabilities(std::vector<std::string> required,
                                             std::string_view agent, std::string_view version,
                                             const engine::Plan* plan) {
  const bool is_routed = plan != nullptr && plan->versions == engine::VersionPolicy::route &&
                         std::ranges::none_of(plan->nodes, [](const engine::Node& node) {
                           return node.code != nullptr;
                         });
  if (is_routed) {
    required.push_back(version_capability(agent, version));
  }
  return required;
}

}  // namespace ae::runtime

#include "runtime/row.h"

#include "core/json.h"

namespace ae::runtime {

store::RowState row_of(const engine::State& state) {
  store::RowState row;
  row.status = to_text(state.status);
  if (state.status == engine::JobStatus::queued) row.not_before = state.not_before;
  if (!engine::is_terminal(state.status)) row.wake_at = state.next_due();
  return row;
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

Hash request_hash(std::string_view agent, const Value& input, const Value& labels,
                  const Value& forked_from, const Value& asked) {
  Value request = Value::object({{"agent", agent}, {"input", input}, {"labels", labels}});
  if (!forked_from.is_null()) request = request.with("forked_from", forked_from);
  if (!asked.is_null()) request = request.with("asked", asked);
  return sha256(canonical(request));
}

std::string version_capability(std::string_view agent, std::string_view version) {
  return "execution_version:" + std::string(agent) + "=" + std::string(version);
}

std::vector<std::string> needed_capabilities(std::vector<std::string> required,
                                             std::string_view agent, std::string_view version,
                                             engine::VersionPolicy versions) {
  if (versions != engine::VersionPolicy::warn) {
    required.push_back(version_capability(agent, version));
  }
  return required;
}

}  // namespace ae::runtime

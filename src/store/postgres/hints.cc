#include "store/postgres/hints.h"

#include "core/json.h"

namespace ae::store::postgres {
namespace {

constexpr std::string_view kInbox = "inbox ";
constexpr std::string_view kClaim = "claim ";
constexpr const char* kAnyClaim = "claim";

}  // namespace

void Hints::claimable(const std::string& agent, const std::vector<std::string>& capabilities) {
  if (claims_.contains(kAnyClaim)) return;
  const Value needs =
      Value::object({{"agent", agent},
                     {"capabilities",
                      Value::array(std::vector<Value>(capabilities.begin(), capabilities.end()))}});
  std::string text = std::string(kClaim) + canonical(needs);
  const bool is_long = text.size() > kHintBytes;
  claims_.insert(std::move(text));
  if (is_long || claims_.size() > kHintKinds) claims_ = {kAnyClaim};
}

void Hints::posted(const JobId& job) { posts_.insert(std::string(kInbox) + job.text); }

std::vector<std::string> Hints::texts() const {
  std::vector<std::string> all(claims_.begin(), claims_.end());
  all.insert(all.end(), posts_.begin(), posts_.end());
  return all;
}

Hint hint_of(std::string_view text) {
  Hint hint;
  if (text.starts_with(kInbox)) {
    hint.inbox_of = JobId(std::string(text.substr(kInbox.size())));
    return hint;
  }
  if (!text.starts_with(kClaim)) return hint;
  const auto needs = parse_json(text.substr(kClaim.size()));
  if (!needs || !needs->is_object() || !(*needs)["agent"].is_string() ||
      !(*needs)["capabilities"].is_array()) {
    return hint;
  }
  Hint::Needs read{.agent = std::string(needs->text("agent")), .capabilities = {}};
  for (const Value& one : (*needs)["capabilities"].items()) {
    if (!one.is_string()) return hint;
    read.capabilities.emplace_back(one.as_string());
  }
  hint.needs = std::move(read);
  return hint;
}

}  // namespace ae::store::postgres

#include "store/postgres/hints.h"

#include <algorithm>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::store::postgres {
namespace {

constexpr std::string_view kInboxHint = "inbox ";
constexpr std::string_view kIdleHint = "idle";
constexpr std::string_view kEarlierIdleHint = "rested";  // of older versions
constexpr std::string_view kClaimHint = "claim ";
constexpr const char* kAnyClaimHint = "claim";
constexpr Statement kNotify{"notify",
                            "SELECT count(*) FROM (SELECT pg_notify($1::text, hint) "
                            "FROM unnest($2::text[]) AS hint) AS sent"};

}  // namespace

void HintBatch::add_claimable(const std::string& agent,
                              const std::vector<std::string>& capabilities) {
  if (claim_hints_.contains(kAnyClaimHint)) return;
  const Value needs =
      Value::object({{field::agent, agent},
                     {"capabilities",
                      Value::array(std::vector<Value>(capabilities.begin(), capabilities.end()))}});
  std::string text = std::string(kClaimHint) + canonical(needs);
  const bool is_long = text.size() > kHintBytes;
  claim_hints_.insert(std::move(text));
  if (is_long || claim_hints_.size() > kHintKinds) claim_hints_ = {kAnyClaimHint};
}

void HintBatch::add_inbox(const JobId& job) {
  inbox_hints_.insert(std::string(kInboxHint) + job.text);
}

std::vector<std::string> HintBatch::texts() const {
  std::vector<std::string> all(claim_hints_.begin(), claim_hints_.end());
  all.insert(all.end(), inbox_hints_.begin(), inbox_hints_.end());
  return all;
}

std::string idle_channel(const std::string& channel) { return channel + " idle"; }

std::vector<std::string> listened_channels(const std::string& channel) {
  return {channel, idle_channel(channel), channel + " rested"};
}

std::vector<std::string> idle_texts(const std::set<JobId>& jobs) {
  std::vector<std::string> texts;
  for (const JobId& job : jobs) {
    if (texts.empty() || texts.back().size() + 1 + job.text.size() > kHintBytes) {
      texts.emplace_back(kIdleHint);
    }
    texts.back().append(" ").append(job.text);
  }
  return texts;
}

void add_notify(Connection& connection, const std::string& channel,
                const std::vector<std::string>& texts) {
  Column hints(Column::Type::text);
  for (const std::string& text : texts) hints.add(text);
  connection.add(kNotify, Params().add(channel).add(hints));
}

Pg<void> notify(Connection& connection, const std::string& channel,
                const std::vector<std::string>& texts) {
  add_notify(connection, channel, texts);
  AE_TRY(connection.run());
  return {};
}

Hint parse_hint(std::string_view text) {
  Hint hint;
  if (text.starts_with(kIdleHint) || text.starts_with(kEarlierIdleHint)) {
    for (std::size_t at = text.find(' '); at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at + 1), text.size());
      hint.idle.emplace_back(std::string(text.substr(at + 1, end - at - 1)));
      at = end;
    }
    return hint;
  }
  if (text.starts_with(kInboxHint)) {
    hint.inbox_of = JobId(std::string(text.substr(kInboxHint.size())));
    return hint;
  }
  if (!text.starts_with(kClaimHint)) return hint;
  const auto needs = parse_json(text.substr(kClaimHint.size()));
  if (!needs || !needs->is_object() || !(*needs)[field::agent].is_string() ||
      !(*needs)["capabilities"].is_array()) {
    return hint;
  }
  Hint::Needs read{.agent = std::string(needs->text(field::agent)), .capabilities = {}};
  for (const Value& one : (*needs)["capabilities"].items()) {
    if (!one.is_string()) return hint;
    read.capabilities.emplace_back(one.as_string());
  }
  hint.needs = std::move(read);
  return hint;
}

}  // namespace ae::store::postgres

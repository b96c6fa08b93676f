// Registry: see registry.h.
#include "store/registry.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::store {
namespace {

// A definition can be as large as a request, and can be nested this deep.
constexpr JsonLimits kEntry{.bytes_max = 16u << 20, .depth_max = 128};

bool is_short(std::string_view text) { return !text.empty() && text.size() <= Registry::kNameMax; }

std::optional<Instant> instant_in(const Value& object, std::string_view name) {
  const auto at = instant_from_text(object.text(name));
  return at ? std::optional(*at) : std::nullopt;
}

}  // namespace

std::optional<std::string> Registry::apply(const AuditRow& row) {
  if (row.seq <= seq_) return std::nullopt;
  seq_ = row.seq;
  const bool is_registry_entry = row.body.find("key_") != std::string::npos ||
                                 row.body.find("agent_registered") != std::string::npos;
  if (!is_registry_entry) return std::nullopt;
  const auto warning = [&](const std::string& what) {
    return fmt::format("entry {} of the audit log is skipped: {}", row.seq, what);
  };
  const auto entry = parse_json(row.body, kEntry);
  if (!entry || !entry->is_object()) return warning("it cannot be read");
  if (auto error = apply_operation(entry->text("act"), *entry)) return warning(*error);
  return std::nullopt;
}

std::optional<std::string> Registry::apply_operation(std::string_view operation,
                                                     const Value& entry) {
  if (operation == "key_created") return key_created(entry);
  if (operation == "key_revoked") return key_revoked(entry);
  if (operation == "agent_registered") return agent_registered(entry);
  return std::nullopt;
}

std::optional<std::string> Registry::key_created(const Value& entry) {
  const Value& detail = entry[field::detail];
  ApiKey key{.id = std::string(detail.text("id")),
             .role = std::string(detail.text("role")),
             .name = std::string(detail.text("name")),
             .created_by = std::string(entry.text(field::by)),
             .revoked_by = {}};
  const auto hash = hash_from_hex(detail.text("hash"));
  const auto at = instant_in(entry, field::at);
  const Value* const expires = detail.find(field::expires_at);
  key.expires_at = instant_in(detail, field::expires_at);
  if (!is_short(key.id) || !is_short(key.role) || !hash || !at) return "it is not a key";
  if (expires != nullptr && !expires->is_null() && !key.expires_at) {
    return "the expiry of this key is invalid";
  }
  if (keys_.contains(key.id)) return "there is a key with this id";
  key.secret_hash = *hash;
  key.created_at = *at;
  keys_.emplace(key.id, std::move(key));
  return std::nullopt;
}

std::optional<std::string> Registry::key_revoked(const Value& entry) {
  const auto found = keys_.find(entry[field::detail].text("id"));
  if (found == keys_.end()) return "there is no key with this id";
  ApiKey& key = found->second;
  if (key.revoked_at) return std::nullopt;
  // Revoked regardless of the time in the entry.
  key.revoked_at = instant_in(entry, field::at).value_or(key.created_at);
  key.revoked_by = entry.text(field::by);
  return std::nullopt;
}

std::optional<std::string> Registry::agent_registered(const Value& entry) {
  const Value& detail = entry[field::detail];
  AgentVersion version{.name = std::string(detail.text("name")),
                       .plan_hash = std::string(detail.text(field::plan_hash)),
                       .definition = detail["definition"],
                       .registered_at = {},
                       .by = std::string(entry.text(field::by))};
  const auto at = instant_in(entry, field::at);
  if (!is_short(version.name) || !hash_from_hex(version.plan_hash) || !at ||
      !version.definition.is_object()) {
    return "it is not an agent";
  }
  version.registered_at = *at;
  std::vector<AgentVersion>& versions = agents_[version.name];
  if (!versions.empty() && versions.back().definition == version.definition &&
      versions.back().plan_hash == version.plan_hash) {
    return std::nullopt;  // two processes registered the same version
  }
  version.version = versions.size() + 1;
  versions.push_back(std::move(version));
  return std::nullopt;
}

const ApiKey* Registry::key(std::string_view id) const {
  const auto found = keys_.find(id);
  return found == keys_.end() ? nullptr : &found->second;
}

const AgentVersion* Registry::newest(std::string_view name) const {
  const auto found = agents_.find(name);
  return found == agents_.end() ? nullptr : &found->second.back();
}

const AgentVersion* Registry::find_version_with_plan(std::string_view name,
                                                     std::string_view plan_hash) const {
  const auto found = agents_.find(name);
  if (found == agents_.end()) return nullptr;
  const auto& versions = found->second;
  const auto last =
      std::ranges::find(versions.rbegin(), versions.rend(), plan_hash, &AgentVersion::plan_hash);
  return last == versions.rend() ? nullptr : &*last;
}

AuditEntry key_created(const ApiKey& key) {
  std::vector<Member> detail{
      {"hash", to_hex(key.secret_hash)}, {"id", key.id}, {"name", key.name}, {"role", key.role}};
  if (key.expires_at) detail.emplace_back(field::expires_at, to_text(*key.expires_at));
  return {.at = key.created_at,
          .by = key.created_by,
          .act = "key_created",
          .job = {},
          .detail = Value::object(std::move(detail))};
}

AuditEntry key_revoked(std::string_view id, Instant at, std::string by) {
  return {.at = at,
          .by = std::move(by),
          .act = "key_revoked",
          .job = {},
          .detail = Value::object({{"id", std::string(id)}})};
}

AuditEntry agent_registered(const AgentVersion& version) {
  return {.at = version.registered_at,
          .by = version.by,
          .act = "agent_registered",
          .job = {},
          .detail = Value::object({{"definition", version.definition},
                                   {"name", version.name},
                                   {field::plan_hash, version.plan_hash}})};
}

}  // namespace ae::store

// Registry: the API keys and agent versions, folded from the audit log.
//
// The audit log is authoritative. A process that has applied entry n reads the entries above n and
// applies them. An unreadable entry is skipped with a warning; it grants nothing.
//
//   key_created {id, hash, role, name, expires_at?}   hash = SHA-256 of the secret part, 64 hex digits
//   key_revoked {id}
//   agent_registered {name, plan_hash, definition}    definition = the agent's part of an agents file
//
// Stored: these are permanent formats. Threads: a value. See
// docs/decisions/0033-keys-and-agents-in-the-audit-log.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "json/value.h"
#include "store/audit.h"

namespace ae::store {

struct ApiKey {
  std::string id;    // public: part of the key, of lists and of records
  Hash secret_hash;  // of the secret part
  std::string role;  // as written; the API's authenticator interprets it
  std::string name;  // display name; "" = none
  std::string created_by, revoked_by;
  Instant created_at;
  std::optional<Instant> expires_at, revoked_at;

  bool is_live(Instant now) const { return !revoked_at && (!expires_at || now < *expires_at); }
};

struct AgentVersion {
  std::string name;
  std::uint64_t version = 0;  // from 1, per name
  std::string plan_hash;
  Value definition;
  Instant registered_at;
  std::string by;
};

class Registry {
 public:
  // Applies an entry; answers what is wrong with it, if it is invalid. Entries that were applied
  // before and other operations change nothing.
  std::optional<std::string> apply(const AuditRow& row);
  // The last entry that was applied.
  std::uint64_t seq() const { return seq_; }

  const std::map<std::string, ApiKey, std::less<>>& keys() const { return keys_; }
  const ApiKey* key(std::string_view id) const;
  // By name; each has at least one version, oldest first.
  const std::map<std::string, std::vector<AgentVersion>, std::less<>>& agents() const {
    return agents_;
  }
  const AgentVersion* newest(std::string_view name) const;
  // The newest version with this plan.
  const AgentVersion* find_version_with_plan(std::string_view name,
                                             std::string_view plan_hash) const;

  static constexpr std::size_t kNameMax = 64;  // bytes of a name, an id, a role

 private:
  std::optional<std::string> apply_operation(std::string_view operation, const Value& entry);
  std::optional<std::string> key_created(const Value& entry);
  std::optional<std::string> key_revoked(const Value& entry);
  std::optional<std::string> agent_registered(const Value& entry);

  std::uint64_t seq_ = 0;
  std::map<std::string, ApiKey, std::less<>> keys_;
  std::map<std::string, std::vector<AgentVersion>, std::less<>> agents_;
};

// The entries to write. `at` and `by` are the writer's.
AuditEntry key_created(const ApiKey& key);
AuditEntry key_revoked(std::string_view id, Instant at, std::string by);
// `version.version` is not written: it is derived from the log.
AuditEntry agent_registered(const AgentVersion& version);

}  // namespace ae::store

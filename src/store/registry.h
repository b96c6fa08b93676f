// Registry: which API keys and which versions of agents there are, folded from the audit log.
//
// The log is the only truth; a process that has seen entry n asks for what stands above it and absorbs that. An entry
// that cannot be read is passed over with a warning: it gives nobody a right.
//
//   key_created {id, hash, role, name, expires_at?}   hash = SHA-256 of the secret part, 64 hex digits
//   key_revoked {id}
//   agent_registered {name, plan_hash, definition}    definition = the agent's part of an agents file
//
// Stored: these are permanent formats. Threads: a value. See docs/decisions/0033-keys-and-agents-in-the-audit-log.md.
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
  std::string id;    // public: it is in the key, in lists and in what is recorded
  Hash secret_hash;  // of the secret part
  std::string role;  // as it was written; the door knows what it may do
  std::string name;  // for people; "" = none
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
  // What is wrong with the entry, if something is. One that was seen already changes nothing; so do entries about
  // other things.
  std::optional<std::string> apply(const AuditRow& row);
  // The last entry that was seen.
  std::uint64_t seq() const { return seq_; }

  const std::map<std::string, ApiKey, std::less<>>& keys() const { return keys_; }
  const ApiKey* key(std::string_view id) const;
  // By name; the versions of each, oldest first, never none.
  const std::map<std::string, std::vector<AgentVersion>, std::less<>>& agents() const {
    return agents_;
  }
  const AgentVersion* newest(std::string_view name) const;
  // The newest version with this plan.
  const AgentVersion* find_version_with_plan(std::string_view name,
                                             std::string_view plan_hash) const;

  static constexpr std::size_t kNameMax = 64;  // characters of a name, an id, a role

 private:
  std::optional<std::string> take(std::string_view act, const Value& entry);
  std::optional<std::string> key_created(const Value& entry);
  std::optional<std::string> key_revoked(const Value& entry);
  std::optional<std::string> agent_registered(const Value& entry);

  std::uint64_t seq_ = 0;
  std::map<std::string, ApiKey, std::less<>> keys_;
  std::map<std::string, std::vector<AgentVersion>, std::less<>> agents_;
};

// What is written. `at` and `by` are the writer's.
AuditEntry key_created(const ApiKey& key);
AuditEntry key_revoked(std::string_view id, Instant at, std::string by);
// `version.version` is not written: it follows from the log.
AuditEntry agent_registered(const AgentVersion& version);

}  // namespace ae::store

// Audit: a store's own log of what was done to its records and who did it: values dropped, copies made anew, a loss
// accepted, a job forked; and of keys and agents, which stand nowhere else (store/registry.h). It is no job's log: it stays
// when values go, and holds none itself.
//
//   hash = SHA256("aetheris.audit.v1" ‖ prev (32 bytes, zero at seq 1) ‖ body)
//   body = canonical {act, at, by, detail, job, seq}; `detail` is an object, `job` may be ""
//
// Stored: this is a permanent format. An entry is written in the transaction of the act that it tells of.
// Threads: pure functions. See docs/decisions/0026-redaction-and-audit.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"

namespace ae::store {

struct AuditEntry {
  Instant at;       // the writer's claim
  std::string by;   // who; "" = nobody said
  std::string act;  // redact, fork, rebuild, accept_rollback, key_created, …
  JobId job;        // which it was about; empty = the store
  Value detail;     // an object. REQUIRES: nothing that may have to be dropped
};

// As it stands. Drivers keep the bytes and do not look inside.
struct AuditRow {
  std::uint64_t seq = 0;
  std::string body;
  Hash hash;
};

// Where the log ends.
struct AuditHead {
  std::uint64_t seq = 0;
  Hash hash;
  friend bool operator==(const AuditHead&, const AuditHead&) = default;
};

AuditRow chain_entry(const AuditHead& head, const AuditEntry& entry);

struct AuditLog {
  std::vector<AuditRow> rows;  // by seq, as they are found
  AuditHead head;              // as it is kept beside them
};

struct AuditVerification {
  bool ok = false;
  std::string head;    // intact | altered | truncated
  std::string detail;  // what was found, and where
  std::uint64_t entries = 0;
};
// The whole log, from its first entry.
AuditVerification verify_audit_log(const AuditLog& log);

// {act, at, by, detail, hash, job, prev_hash, seq}; a body that cannot be read is shown as such.
Value audit_view(const AuditRow& row, const Hash& prev);

}  // namespace ae::store

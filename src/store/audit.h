// Audit log: the store's own log of operations on its records, with their author: redactions,
// rebuilds, accepted rollbacks, forks. API keys and agent versions are stored only here
// (store/registry.h). It is separate from the logs of jobs: it survives redaction and contains no
// redactable values.
//
//   hash = SHA256("aetheris.audit.v1" ‖ prev (32 bytes, zero at seq 1) ‖ body)
//   body = canonical {act, at, by, detail, job, seq}; `detail` is an object, `job` may be ""
//
// Stored: this is a permanent format. An entry is written in the transaction of the operation that
// it records.
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
  Instant at;       // by the writer's clock
  std::string by;   // author; "" = unknown
  std::string act;  // redact, fork, rebuild, accept_rollback, key_created, …
  JobId job;        // the job concerned; empty = the store
  Value detail;     // an object. REQUIRES: no value that may have to be redacted
};

// A stored entry. Drivers do not interpret the body.
struct AuditRow {
  std::uint64_t seq = 0;
  std::string body;
  Hash hash;
};

// The end of the log. Stored: its text.
struct AuditHead {
  std::uint64_t seq = 0;
  Hash hash;
  friend bool operator==(const AuditHead&, const AuditHead&) = default;
};

// "seq hash".
std::string to_text(const AuditHead& head);
// An unreadable text gives a head that matches no log.
AuditHead audit_head_from_text(std::string_view text);

AuditRow chain_entry(const AuditHead& head, const AuditEntry& entry);

struct AuditLog {
  std::vector<AuditRow> rows;  // by seq, as stored
  AuditHead head;              // as stored separately
};

struct AuditVerification {
  bool ok = false;
  std::string head;    // intact | altered | truncated
  std::string detail;  // what is wrong, and where
  std::uint64_t entries = 0;
};
// REQUIRES: the whole log, from its first entry.
AuditVerification verify_audit_log(const AuditLog& log);

// {act, at, by, detail, hash, job, prev_hash, seq}; an unreadable body is shown as {unreadable: its
// SHA-256}.
Value audit_view(const AuditRow& row, const Hash& prev);

}  // namespace ae::store

// SqliteRebuild: the rebuild of a store file. For writing, it becomes the owner of the file. For
// comparing, it reads one snapshot, also while an owner is running.
//
// Threads: one. See store/rebuild.h.
#pragma once

#include <memory>
#include <string>

#include "store/rebuild.h"

namespace ae::store {

struct SqliteRebuildOptions {
  std::string path;
  bool compare_only = false;
  std::string job;  // only this one; "" = all
};

class SqliteRebuild final : public Rebuild {
 public:
  // Fails with store_locked (the message has the owner's pid; not with compare_only) ·
  // needs_version · not_found · unavailable.
  static Result<std::unique_ptr<SqliteRebuild>> open(const SqliteRebuildOptions& options);
  ~SqliteRebuild() override;  // rolls back what was not committed

  Result<std::uint64_t> count_jobs() override;
  Result<std::optional<JobId>> next_job() override;
  Result<StoredLog> read(const JobId& job) override;
  Result<std::string> blob(const Hash& hash) override;
  Result<std::vector<Difference>> reconcile(const Projection& expected, Instant now) override;
  Result<std::vector<Difference>> reconcile_store_rows() override;
  Result<std::vector<Damage>> find_damage() override;
  Status append_audit_entry(const AuditEntry& entry) override;
  Status commit() override;

 private:
  struct Impl;
  explicit SqliteRebuild(std::unique_ptr<Impl> parts);

  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::store

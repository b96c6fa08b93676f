// PostgresRebuild: the rebuild of a store in PostgreSQL, also while workers use it: each job is
// locked, rewritten and released. A comparison reads one snapshot.
//
// Threads: one. See store/rebuild.h.
#pragma once

#include <memory>
#include <string>

#include "store/rebuild.h"

namespace ae::store {

struct PostgresRebuildOptions {
  std::string url;  // a libpq connection string
  std::string schema = "aetheris";
  bool compare_only = false;
  std::string job;  // only this one; "" = all
};

class PostgresRebuild final : public Rebuild {
 public:
  // Fails as PostgresStore::open.
  static Result<std::unique_ptr<PostgresRebuild>> open(const PostgresRebuildOptions& options);
  ~PostgresRebuild() override;  // rolls back what was not committed

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
  explicit PostgresRebuild(std::unique_ptr<Impl> parts);

  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::store

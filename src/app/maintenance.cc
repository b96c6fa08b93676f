#include "app/maintenance.h"

#include <memory>

#include "app/instance.h"
#include "log/field_names.h"
#include "net/system.h"
#include "store/postgres/postgres_store.h"
#include "store/sqlite/sqlite_store.h"

namespace ae::app {
namespace {

constexpr const char* kPage = "1000";

Error unsupported_copy_error(const StoreUrl& store) {
  if (store.kind == StoreUrl::Kind::memory) {
    return {Code::unsupported,
            "a memory: store is gone with its process: there is nothing to copy"};
  }
  return {Code::unsupported,
          "back up and restore a PostgreSQL store with pg_dump and pg_restore, or with its WAL "
          "archive: see docs/operations.md"};
}

Result<Value> send_ok(Instance& instance, api::ApiRequest request) {
  api::ApiResponse answer = instance.send(std::move(request));
  if (answer.status != 200) {
    return fail(Code::log_corrupt, std::string(answer.body.text(field::detail)));
  }
  return std::move(answer.body);
}

Status verify_job(Instance& instance, const std::string& id) {
  api::ApiRequest verify;
  verify.path = {"api", "jobs", id, "verify"};
  auto proof = send_ok(instance, std::move(verify));
  if (proof && (*proof)["ok"] == Value(true)) return {};
  const std::string why = proof ? std::string(proof->text("head")) : proof.error().message;
  return fail(Code::log_corrupt,
              "job {} of the backup does not verify ({}): use an earlier backup, or "
              "restore with --skip-verify and inspect the job",
              id, why);
}

Result<std::uint64_t> verify_audit_log(const std::string& copy, const Progress& progress) {
  AE_ASSIGN(const auto instance, Instance::open({.store = {StoreUrl::Kind::sqlite, copy}}));
  MaintenanceProgress done;
  std::string cursor;
  do {
    api::ApiRequest list;
    list.path = {"api", "jobs"};
    list.query = {{"limit", kPage}};
    if (!cursor.empty()) list.query.emplace_back("cursor", cursor);
    AE_ASSIGN(const Value page, send_ok(*instance, std::move(list)));
    for (const Value& job : page["jobs"].items()) {
      AE_TRY(verify_job(*instance, std::string(job.text("id"))));
      ++done.jobs;
      if (progress) progress(done);
    }
    cursor = page.text("next_cursor");
  } while (!cursor.empty());
  return done.jobs;
}

store::CopyProgress copy_progress(const Progress& progress) {
  if (!progress) return {};
  return [progress](std::uint64_t bytes, std::uint64_t of) {
    progress({.bytes = bytes, .of_bytes = of});
  };
}

}  // namespace

Result<store::Migration> migrate(const StoreUrl& store, const store::MigrationOptions& params) {
  switch (store.kind) {
    case StoreUrl::Kind::sqlite:
      if (!params.check_only) AE_TRY(check_folder(store));
      return store::migrate_sqlite(store.path, params);
    case StoreUrl::Kind::postgres:
      return store::migrate_postgres(store.path, params);
    case StoreUrl::Kind::memory:
      break;
  }
  return fail(Code::unsupported,
              "a memory: store is gone with its process: there is nothing to bring up to date");
}

Status backup(const StoreUrl& store, const std::string& to, const Progress& progress) {
  if (store.kind != StoreUrl::Kind::sqlite) return std::unexpected(unsupported_copy_error(store));
  return store::backup_sqlite(store.path, to, copy_progress(progress));
}

Result<std::uint64_t> restore(const RestoreRequest& request) {
  if (request.store.kind != StoreUrl::Kind::sqlite)
    return std::unexpected(unsupported_copy_error(request.store));
  AE_TRY(check_folder(request.store));
  net::SystemClock clock;
  std::uint64_t verified = 0;
  store::RestoreOptions params{.nothing_lost = request.nothing_lost,
                               .now = clock.now(),
                               .by = request.by,
                               .verify_audit_log = {},
                               .progress = copy_progress(request.progress)};
  if (request.verify) {
    params.verify_audit_log = [&](const std::string& copy) -> Status {
      AE_ASSIGN(verified, verify_audit_log(copy, request.progress));
      return {};
    };
  }
  AE_TRY(store::restore_sqlite(request.from, request.store.path, params));
  return verified;
}

}  // namespace ae::app

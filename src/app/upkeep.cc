#include "app/upkeep.h"

#include <memory>

#include "app/site.h"
#include "net/system.h"
#include "store/postgres/postgres_store.h"
#include "store/sqlite/sqlite_store.h"

namespace ae::app {
namespace {

constexpr const char* kPage = "1000";

Error no_copy(const StoreUrl& store) {
  if (store.kind == StoreUrl::Kind::memory) {
    return {Code::unsupported,
            "a memory: store is gone with its process: there is nothing to copy"};
  }
  return {Code::unsupported,
          "back up and restore a PostgreSQL store with pg_dump and pg_restore, or with its WAL "
          "archive: see docs/operations.md"};
}

Result<Value> ask(Site& site, api::ApiRequest request) {
  api::ApiResponse answer = site.ask(std::move(request));
  if (answer.status != 200) {
    return fail(Code::log_corrupt, std::string(answer.body.text("detail")));
  }
  return std::move(answer.body);
}

Status prove_job(Site& site, const std::string& id) {
  api::ApiRequest verify;
  verify.path = {"api", "jobs", id, "verify"};
  auto proof = ask(site, std::move(verify));
  if (proof && (*proof)["ok"] == Value(true)) return {};
  const std::string why = proof ? std::string(proof->text("head")) : proof.error().message;
  return fail(Code::log_corrupt,
              "job " + id + " of the backup does not verify (" + why +
                  "): use an earlier backup, or restore with --skip-verify and inspect the job");
}

Result<std::uint64_t> prove(const std::string& copy, const Progress& progress) {
  AE_ASSIGN(const auto site, Site::open({.store = {StoreUrl::Kind::sqlite, copy}}));
  UpkeepProgress done;
  std::string cursor;
  do {
    api::ApiRequest list;
    list.path = {"api", "jobs"};
    list.query = {{"limit", kPage}};
    if (!cursor.empty()) list.query.emplace_back("cursor", cursor);
    AE_ASSIGN(const Value page, ask(*site, std::move(list)));
    for (const Value& job : page["jobs"].items()) {
      AE_TRY(prove_job(*site, std::string(job.text("id"))));
      ++done.jobs;
      if (progress) progress(done);
    }
    cursor = page.text("next_cursor");
  } while (!cursor.empty());
  return done.jobs;
}

store::CopyProgress copying(const Progress& progress) {
  if (!progress) return {};
  return [progress](std::uint64_t bytes, std::uint64_t of) {
    progress({.bytes = bytes, .of_bytes = of});
  };
}

}  // namespace

Result<store::Migration> migrate(const StoreUrl& store, const store::MigrationWish& wish) {
  switch (store.kind) {
    case StoreUrl::Kind::sqlite:
      if (!wish.check_only) AE_TRY(check_folder(store));
      return store::migrate_sqlite(store.path, wish);
    case StoreUrl::Kind::postgres:
      return store::migrate_postgres(store.path, wish);
    case StoreUrl::Kind::memory:
      break;
  }
  return fail(Code::unsupported,
              "a memory: store is gone with its process: there is nothing to bring up to date");
}

Status backup(const StoreUrl& store, const std::string& to, const Progress& progress) {
  if (store.kind != StoreUrl::Kind::sqlite) return std::unexpected(no_copy(store));
  return store::backup_sqlite(store.path, to, copying(progress));
}

Result<std::uint64_t> restore(const RestoreSite& site) {
  if (site.store.kind != StoreUrl::Kind::sqlite) return std::unexpected(no_copy(site.store));
  AE_TRY(check_folder(site.store));
  net::SystemClock clock;
  std::uint64_t proved = 0;
  store::RestoreWish wish{.nothing_lost = site.nothing_lost,
                          .now = clock.now(),
                          .by = site.by,
                          .prove = {},
                          .progress = copying(site.progress)};
  if (site.verify) {
    wish.prove = [&](const std::string& copy) -> Status {
      AE_ASSIGN(proved, prove(copy, site.progress));
      return {};
    };
  }
  AE_TRY(store::restore_sqlite(site.from, site.store.path, wish));
  return proved;
}

}  // namespace ae::app

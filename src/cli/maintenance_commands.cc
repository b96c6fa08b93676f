// migrate, backup, restore: operations on a whole store.
#include "app/maintenance.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include "base/counted.h"
#include "cli/progress_line.h"
#include "cli/shared.h"
#include "cli/text.h"

namespace ae::cli {
namespace {

struct MigrateOptions : CommonOptions {
  bool check_only = false;
};

std::vector<Option> migrate_options(MigrateOptions& o) {
  return {{"--check", "", &o.check_only, "only check; exit code 5 if a migration is needed"}};
}

struct BackupOptions : CommonOptions {
  std::string file;
};

std::vector<Option> backup_options(BackupOptions& o) {
  return {{"FILE", "", &o.file, "the backup file; must not exist", kRequired}};
}

struct RestoreOptions : CommonOptions {
  std::string file;
  bool nothing_lost = false, skip_verify = false;
};

std::vector<Option> restore_options(RestoreOptions& o) {
  return {{"FILE", "", &o.file, "the backup file", kRequired},
          {"--nothing-lost", "", &o.nothing_lost,
           "nothing ran since the backup; jobs continue without review"},
          {"--skip-verify", "", &o.skip_verify, "skip the verification of job logs"}};
}

std::string layouts(const store::Migration& migration) {
  if (!migration.is_pending()) return fmt::format("layout {}", migration.to);
  if (migration.from == 0) return fmt::format("no store -> layout {}", migration.to);
  return fmt::format("layout {} -> layout {}", migration.from, migration.to);
}

std::string shown(const app::MaintenanceProgress& progress) {
  if (progress.jobs > 0) return fmt::format("{} proved", counted(progress.jobs, "job"));
  constexpr std::uint64_t kMiB = 1u << 20;
  return fmt::format("{} of about {} MiB copied", progress.bytes / kMiB, progress.of_bytes / kMiB);
}

std::uint64_t size_of(const std::string& path) {
  struct stat found{};
  return ::stat(path.c_str(), &found) == 0 ? static_cast<std::uint64_t>(found.st_size) : 0;
}

int migrate_command(const MigrateOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto migrated = app::migrate(*store, {.check_only = options.check_only});
  if (!migrated) return terminal.fail_with(migrated.error());
  const bool due = options.check_only && migrated->is_pending();
  if (terminal.json()) {
    terminal.print_json(Value::object({{"changed", migrated->is_pending() && !options.check_only},
                                       {"due", due},
                                       {"from", migrated->from},
                                       {"to", migrated->to}}));
  } else {
    terminal.print(fmt::format("{}: {}\n", layouts(*migrated),
                               due                      ? "migration needed"
                               : migrated->is_pending() ? "done"
                                                        : "up to date"));
    if (due) terminal.note(fmt::format("`aetheris migrate{}` migrates it", store_flag(*store)));
  }
  return due ? kConflict : kDone;
}

int backup_command(const BackupOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto done = [&] {
    ProgressLine line(terminal);
    return app::backup(*store, options.file,
                       [&](const auto& progress) { line.show(shown(progress)); });
  }();
  if (!done) return terminal.fail_with(done.error());
  const std::uint64_t bytes = size_of(options.file);
  if (terminal.json()) {
    terminal.print_json(Value::object({{"bytes", bytes}, {"file", options.file}}));
  } else {
    terminal.print(fmt::format("{}: {} bytes\n", safe(options.file), bytes));
  }
  return kDone;
}

int restore_command(const RestoreOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto proved = [&] {
    ProgressLine line(terminal);
    return app::restore({.store = *store,
                         .from = options.file,
                         .by = cli_actor(),
                         .nothing_lost = options.nothing_lost,
                         .verify = !options.skip_verify,
                         .progress = [&](const auto& progress) { line.show(shown(progress)); }});
  }();
  if (!proved) return terminal.fail_with(proved.error());
  const auto rollback_check = app::check_for_rollback(*store);
  if (terminal.json()) {
    terminal.print_json(Value::object({{"jobs_proved", *proved},
                                       {"restored", options.file},
                                       {"to_accept", !rollback_check},
                                       {"verified", !options.skip_verify}}));
    return kDone;
  }
  terminal.print(
      fmt::format("restored: {}{}\n", store->text(),
                  options.skip_verify ? "" : fmt::format(", {} proved", counted(*proved, "job"))));
  if (!rollback_check) {
    const std::string next = fmt::format(
        "`aetheris doctor --accept-rollback{0}` parks open jobs, and `aetheris resume ID{0}` "
        "continues each",
        store_flag(*store));
    terminal.note(fmt::format(
        "the backup does not contain later work, so no job runs yet: review its jobs, then {}",
        next));
  }
  return kDone;
}

}  // namespace

extern const Command kMigrateCommand{
    .name = "migrate",
    .group = Group::maintain,
    .target = Target::store,
    .summary = "migrate or create the schema of a store",
    .example = "aetheris migrate --check",
    .bind = bound_command<MigrateOptions, migrate_options, migrate_command>};

extern const Command kBackupCommand{
    .name = "backup",
    .group = Group::maintain,
    .target = Target::store,
    .summary = "back up a SQLite store, also while it is in use",
    .example = "aetheris backup /backups/monday.db",
    .bind = bound_command<BackupOptions, backup_options, backup_command>};

extern const Command kRestoreCommand{
    .name = "restore",
    .group = Group::maintain,
    .target = Target::store,
    .summary = "restore a backup to a new SQLite store",
    .example = "aetheris restore /backups/monday.db",
    .bind = bound_command<RestoreOptions, restore_options, restore_command>};

}  // namespace ae::cli

#include "store/sqlite/loss.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/lines.h"
#include "store/sqlite/audit_table.h"
#include "store/sqlite/files.h"
#include "store/sqlite/schema.h"

namespace ae::store::sqlite {
namespace {

// Values of `meta.accepting`. Stored.
// A loss was accepted, but not every unfinished job is parked yet.
constexpr std::int64_t kAccepting = 1;
constexpr std::int64_t kBackup = 2;  // a backup that was not restored

Error rolled_back(const std::string& path, const StoreIdentity& identity,
                  const StorePosition& recorded) {
  const std::string how =
      identity.at.timeline == recorded.timeline
          ? fmt::format("it is at position {}, and was at {}", identity.at.number, recorded.number)
          : "it is from before a loss that was accepted here";
  return {Code::store_rolled_back,
          fmt::format("the store {} went backwards: {}; an older copy replaced it, or the disk "
                      "lost writes. Lost work would be repeated: check its jobs",
                      path, how),
          Action{.act = act::kAcceptRollback}};
}

Error acceptance_unfinished(const std::string& path) {
  return {Code::store_rolled_back,
          fmt::format("the store {} went backwards or was restored from a backup, and would repeat "
                      "later work",
                      path),
          Action{.act = act::kAcceptRollback}};
}

Error not_restored(const std::string& path) {
  return {Code::store_rolled_back,
          fmt::format("{} is a backup that was not restored, and would repeat later work: use it "
                      "as the file of a restore, or accept the loss",
                      path),
          Action{.act = act::kAcceptRollback}};
}

bool has_position_file(const std::string& path) {
  struct stat found{};
  return ::stat(position_path(path).c_str(), &found) == 0;
}

// True if an earlier opening with accept_loss created the tables of the lost store and died.
Sql<bool> is_abandoned_recreation(Database& db, const StoreIdentity& identity,
                                  const std::optional<StorePosition>& recorded) {
  if (!recorded || recorded->store == identity.at.store) return false;
  if (identity.at.number != 0 || recorded->number == 0) return false;
  AE_ASSIGN(const std::int64_t commits, db.integer("SELECT EXISTS(SELECT 1 FROM commits)"));
  return commits == 0;
}

Sql<Loss> read_loss(Database& db, const std::string& path, bool no_tables) {
  Loss loss{
      .no_tables = no_tables, .recorded = PositionFile(position_path(path)).read(), .identity = {}};
  AE_ASSIGN(loss.identity, read_store_identity(db));
  if (!no_tables) {
    AE_ASSIGN(loss.no_tables, is_abandoned_recreation(db, loss.identity, loss.recorded));
  }
  return loss;
}

}  // namespace

Sql<StoreIdentity> read_store_identity(Database& db) {
  StoreIdentity identity;
  AE_ASSIGN(Statement meta, db.prepare("SELECT key, value FROM meta"));
  for (Rows row(meta);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) return identity;
    const std::string key = row->text(0);
    if (key == "store_id") identity.at.store = row->text(1);
    if (key == "timeline") identity.at.timeline = row->text(1);
    if (key == kPositionKey) identity.at.number = row->count(1);
    if (key == "timelines") identity.earlier_timelines = split_lines(row->text(1));
    if (key == "accepting") {
      identity.accepting = true;
      identity.backup = row->integer(1) == kBackup;
    }
  }
}

Sql<void> begin_timeline(Database& db, const StoreIdentity& identity,
                         const StorePosition& recorded) {
  std::vector<std::string> earlier_timelines = identity.earlier_timelines;
  earlier_timelines.push_back(identity.at.timeline);
  // The remembered timeline may have begun after this copy was made.
  if (recorded.timeline != identity.at.timeline) earlier_timelines.push_back(recorded.timeline);
  AE_ASSIGN(Statement put, db.prepare("INSERT INTO meta VALUES(?1, ?2) "
                                      "ON CONFLICT DO UPDATE SET value = excluded.value"));
  AE_TRY(put.run(std::string_view("timelines"), join_lines(earlier_timelines)));
  AE_TRY(
      put.run(std::string_view(kPositionKey), std::max(identity.at.number, recorded.number) + 1));
  AE_TRY(put.run(std::string_view("accepting"), kAccepting));
  return db.execute("UPDATE meta SET value = lower(hex(randomblob(16))) WHERE key = 'timeline'");
}

Sql<void> mark_backup(Database& db) {
  AE_ASSIGN(Statement put,
            db.prepare("INSERT INTO meta VALUES('accepting', ?1) ON CONFLICT DO NOTHING"));
  return put.run(kBackup);
}

Sql<void> unmark_backup(Database& db) {
  AE_ASSIGN(Statement remove,
            db.prepare("DELETE FROM meta WHERE key = 'accepting' AND value = ?1"));
  return remove.run(kBackup);
}

bool is_file_missing(const std::string& path) {
  struct stat found{};
  if (!has_position_file(path)) return false;
  return ::stat(path.c_str(), &found) != 0 ? errno == ENOENT : found.st_size == 0;
}

Result<bool> has_no_tables(Database& db, const std::string& path) {
  if (!has_position_file(path)) return false;
  AE_ASSIGN(const std::int64_t layout, layout_of(db, path));
  return layout == 0;
}

Error store_missing(const std::string& path) {
  return {Code::store_rolled_back,
          fmt::format(
              "the store {} is gone: the file is missing or holds nothing, and {} shows "
              "that it existed. Put it back with its -wal, restore a backup, or accept the loss",
              path, position_path(path)),
          Action{.act = act::kAcceptRollback}};
}

Result<Loss> find_loss(Database& db, const std::string& path, bool no_tables,
                       const LossOptions& options) {
  auto read = read_loss(db, path, no_tables);
  if (!read) return std::unexpected(cannot_open(path, read.error()));
  Loss loss = *std::move(read);
  const StoreIdentity& identity = loss.identity;
  const bool behind = loss.recorded && is_behind(identity, *loss.recorded);
  const bool may_accept = options.accept && !options.nothing_lost;
  if (loss.no_tables && !may_accept) return std::unexpected(store_missing(path));
  if (behind && !may_accept) return std::unexpected(rolled_back(path, identity, *loss.recorded));
  if (identity.accepting && !options.accept) {
    return std::unexpected(identity.backup ? not_restored(path) : acceptance_unfinished(path));
  }
  loss.nothing_lost = identity.backup && options.nothing_lost;
  loss.found = loss.no_tables || behind || (identity.backup && !options.nothing_lost) ||
               (options.accept && options.is_loss_certain && !identity.accepting);
  loss.accepting = loss.found || (identity.accepting && !loss.nothing_lost);
  return loss;
}

Sql<void> accept_loss(Database& db, Loss& loss, const LossOptions& options) {
  if (!loss.accepting && !loss.nothing_lost) return {};
  const StorePosition was = loss.recorded.value_or(loss.identity.at);
  std::vector<std::pair<std::string, Value>> detail{{kPositionKey, loss.identity.at.number},
                                                    {"remembered_position", was.number},
                                                    {"remembered_timeline", was.timeline},
                                                    {"timeline", loss.identity.at.timeline}};
  if (loss.nothing_lost) detail.emplace_back("nothing_lost", true);
  AE_TRY(append_audit(db, {.at = options.at,
                           .by = options.by,
                           .act = "accept_rollback",
                           .job = {},
                           .detail = Value::object(std::move(detail))}));
  if (loss.nothing_lost) AE_TRY(unmark_backup(db));
  if (loss.found) AE_TRY(begin_timeline(db, loss.identity, was));
  if (loss.no_tables && loss.recorded) {
    // Keeps the id of the lost store, so that the old file is detected if it reappears.
    AE_ASSIGN(Statement name, db.prepare("UPDATE meta SET value = ?1 WHERE key = 'store_id'"));
    AE_TRY(name.run(was.store));
  }
  AE_ASSIGN(loss.identity, read_store_identity(db));
  return {};
}

Status check_for_loss(Database& db, const std::string& path) {
  AE_TRY(find_loss(db, path, false, {}));
  return {};
}

}  // namespace ae::store::sqlite

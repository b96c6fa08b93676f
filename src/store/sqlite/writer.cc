#include "store/sqlite/writer.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <utility>

#include "store/sqlite/loss.h"
#include "store/sqlite/schema.h"

namespace ae::store::sqlite {
namespace {

Statement must_prepare(Database& db, std::string_view sql) {
  auto statement = db.prepare(sql);
  AE_CHECK(statement.has_value(), sql);
  return *std::move(statement);
}

constexpr std::size_t kFilePageBytes = 4096;

Error unavailable_error(const SqlError& error) { return {Code::unavailable, error.text()}; }

Error unknown_outcome_error(const SqlError& error) {
  return {Code::unknown_outcome, fmt::format("the disk failed while a commit was made durable: {}; "
                                             "its result is known after a restart",
                                             error.text())};
}

}  // namespace

Writer::Writer(async::Loop& loop, std::unique_ptr<Database> db, Tables tables,
               const WriterLimits& limits, StoreFile place)
    : db_(std::move(db)),
      tables_(std::move(tables)),
      begin_(must_prepare(*db_, "BEGIN IMMEDIATE")),
      commit_(must_prepare(*db_, "COMMIT")),
      rollback_(must_prepare(*db_, "ROLLBACK")),
      limits_(limits),
      store_file_(std::move(place)) {
  db_->track_wal_pages(&wal_pages_);
  update_file_stamp();
  save_position(true);
  group_writer_ = std::make_unique<Thread>(
      loop, *this, GroupLimits{.writes = limits_.group_writes, .bytes = limits_.group_bytes});
}

std::optional<Error> Writer::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

std::optional<std::chrono::milliseconds> Writer::idle_time() const {
  if (wal_pages_ == 0 || stopped()) return std::nullopt;
  return limits_.idle;
}

void Writer::on_idle() {
  checkpoint(true);
  save_position(true);
}

std::vector<Writer::Group> Writer::divide(Group group) {
  std::vector<Group> groups;
  groups.push_back(std::move(group));
  return groups;
}

bool Writer::may_split(const Attempt& attempt) {
  return attempt.outcome == CommitOutcome::rolled_back && !attempt.error.busy();
}

void Writer::on_written(const Group& group) {
  if (group.front()->is_erase()) return;
  stats_.writes += group.size();
  stats_.groups += 1;
  stats_.wal_bytes = wal_pages_ * kFilePageBytes;
}

void Writer::on_answered(bool is_erase) {
  if (!is_erase) {
    if (wal_pages_ < checkpointed_at_) checkpointed_at_ = 0;  // the WAL was reset
    if ((wal_pages_ - checkpointed_at_) * kFilePageBytes >= limits_.wal_bytes) checkpoint(false);
  }
  save_position(false);
}

// One transaction for the writes [first, first + count). Anything that fails before the COMMIT has
// changed nothing.
Writer::Attempt Writer::attempt(const Group& group, std::size_t first, std::size_t count) {
  if (group[first]->is_erase()) {
    erase_dropped_values(*group[first]);
    return {CommitOutcome::erased, {}};
  }
  if (stopped()) return {CommitOutcome::refused, {}};
  const auto undo = [this](SqlError error) -> Attempt {
    if (db_->in_transaction()) {
      // If this fails, the next BEGIN fails too: nothing more is written.
      [[maybe_unused]] const auto rolled_back = rollback_.run();
    }
    tables_.clear_cache();
    if (error.io()) stop_writing(error);
    return {CommitOutcome::rolled_back, std::move(error)};
  };
  if (auto why = find_replacement()) {
    stop(*std::move(why));
    return {CommitOutcome::refused, {}};
  }
  const std::int64_t changes = db_->changes();
  if (auto begin_result = begin_.run(); !begin_result) return undo(std::move(begin_result).error());
  for (std::size_t i = first; i < first + count; ++i) {
    if (auto applied = group[i]->apply(tables_); !applied) return undo(std::move(applied).error());
  }
  const bool changed = db_->changes() != changes;
  if (changed) {
    if (auto advanced = tables_.advance(); !advanced) return undo(std::move(advanced).error());
  }
  if (auto done = commit_.run(); !done) {
    Attempt failed = undo(std::move(done).error());
    // A full disk, a lock or a read-only file stopped the commit before its last frame. After any
    // other error the frame may be in the WAL.
    if (failed.error.io()) failed.outcome = CommitOutcome::unknown;
    return failed;
  }
  if (changed) tables_.mark_committed();
  return {CommitOutcome::committed, {}};
}

void Writer::finish(Write& write, const Attempt& attempt) {
  switch (attempt.outcome) {
    case CommitOutcome::committed:
      return write.committed();
    case CommitOutcome::rolled_back:
      return write.fail(unavailable_error(attempt.error));
    case CommitOutcome::unknown:
      return write.fail(unknown_outcome_error(attempt.error));
    case CommitOutcome::refused:
      return write.fail(*stopped());
    case CommitOutcome::erased:
      return;  // it has its answer
  }
}

void Writer::stop_writing(const SqlError& error) {
  db_->disable_checkpoint_on_close();
  stop({Code::store_stopped,
        fmt::format(
            "the store stopped after a disk error ({}): check the disk, then restart this process",
            error.text())});
}

void Writer::stop(Error error) {
  const std::lock_guard lock(mutex_);
  if (!stopped_) stopped_ = std::move(error);
}

std::optional<Writer::FileStamp> Writer::read_file_stamp(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return FileStamp{
      .device = found.st_dev,
      .inode = found.st_ino,
      .size = found.st_size,
      .changed_ns = std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec};
}

void Writer::update_file_stamp() {
  file_ = read_file_stamp(store_file_.path).value_or(FileStamp{});
}

// Checks whether another program changed the file. The owner is the only writer; if the file
// changed, its identity is read again, because this connection would continue with cached pages of
// the old file.
std::optional<Error> Writer::find_replacement() {
  const auto stamp = read_file_stamp(store_file_.path);
  if (stamp == file_) return std::nullopt;
  const auto stopped = [&](const std::string& what) {
    return Error{Code::store_stopped,
                 fmt::format("the file of the store, {}, {} while this process used it: writing "
                             "has stopped; check the file, then restart",
                             store_file_.path, what)};
  };
  if (!stamp) return stopped("was removed");
  // Our file has no name any more, so closing it affects no other file.
  if (stamp->inode != file_.inode || stamp->device != file_.device) return stopped("was replaced");
  const auto read = [&]() -> Sql<StoreIdentity> {
    AE_ASSIGN(Database fresh, Database::open({.path = store_file_.path, .read_only = true}));
    return read_store_identity(fresh);
  };
  const auto identity = read();
  if (identity && identity->at == tables_.position()) {
    file_ = *stamp;
    return std::nullopt;
  }
  db_->disable_checkpoint_on_close();  // it must not write to the new file
  return stopped("was overwritten");
}

// Only a lower bound: on failure it is saved later, or not at all.
void Writer::save_position(bool now) {
  const StorePosition& at = tables_.position();
  const auto clock = std::chrono::steady_clock::now();
  if (at.number == saved_position_ || (!now && clock < save_position_at_) || stopped()) return;
  if (store_file_.position_file.write(at)) saved_position_ = at.number;
  save_position_at_ = clock + store_file_.save_interval;
}

// Redacted values may remain in frames of the WAL and in free space of pages: when SQLite moves
// rows to another page, it does not overwrite the old bytes, even with `secure_delete`.
void Writer::erase_dropped_values(Write& write) {
  if (auto why = find_replacement()) stop(*std::move(why));
  std::vector<ResidualCopy> residual_copies;
  if (!stopped()) {
    if (auto copy = rewrite()) residual_copies.push_back(*std::move(copy));
  }
  if (!stopped()) {
    if (auto copy = empty_wal()) residual_copies.push_back(*std::move(copy));
  }
  if (auto why = stopped()) return write.fail(*why);
  write.set_residual_copies(std::move(residual_copies));
}

std::optional<ResidualCopy> Writer::rewrite() {
  const auto free_space = [&](const std::string& why) {
    return ResidualCopy{
        "copies of values", fmt::format("free space in pages of {}", store_file_.path),
        fmt::format("{}: stop the processes that use the store, then run `sqlite3 {} VACUUM`", why,
                    store_file_.path)};
  };
  const auto size =
      db_->integer("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size");
  if (size && static_cast<std::size_t>(*size) > limits_.rewrite_bytes) {
    return free_space("the file is too large to be rewritten while it is in use");
  }
  const auto done = db_->execute("PRAGMA temp_store = MEMORY; VACUUM");
  if (done) return std::nullopt;
  if (done.error().io()) stop_writing(done.error());
  return free_space(fmt::format("the file was not rewritten ({})", done.error().text()));
}

std::optional<ResidualCopy> Writer::empty_wal() {
  db_->set_busy_timeout(limits_.readers);
  const auto done = db_->checkpoint(true);
  db_->set_busy_timeout(limits_.busy);
  update_file_stamp();
  if (done) {
    wal_pages_ = checkpointed_at_ = 0;
    stats_.wal_bytes = 0;
    return std::nullopt;
  }
  if (done.error().io()) stop_writing(done.error());
  return ResidualCopy{"copies of values",
                      fmt::format("the write-ahead log {}-wal", store_file_.path),
                      fmt::format("it was not emptied ({}): end other programs that read the "
                                  "store, then redact the job again",
                                  done.error().text())};
}

void Writer::checkpoint(bool truncate) {
  if (wal_pages_ == 0 || stopped()) return;
  // Does not wait: a blocking reader is usually gone at the next checkpoint.
  db_->set_busy_timeout(std::chrono::milliseconds(0));
  const auto done = db_->checkpoint(truncate);
  db_->set_busy_timeout(limits_.busy);
  if (!done && done.error().io()) stop_writing(done.error());
  if (done && truncate) wal_pages_ = 0;
  update_file_stamp();
  checkpointed_at_ = wal_pages_;
  stats_.wal_bytes = wal_pages_ * kFilePageBytes;
}

}  // namespace ae::store::sqlite

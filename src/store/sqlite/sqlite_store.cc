#include "store/sqlite/sqlite_store.h"

#include <filesystem>

#include "store/answers.h"
#include "store/rules.h"
#include "store/sqlite/files.h"
#include "store/sqlite/lock_file.h"
#include "store/sqlite/loss.h"
#include "store/sqlite/reader.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/writer.h"
#include "store/sqlite/writes.h"

namespace ae::store {

using namespace sqlite;  // NOLINT: this file is where the parts come together

struct SqliteStore::Impl {
  async::Loop& loop;
  async::Clock& clock;
  LockFile lock, file_lock;        // released last
  std::unique_ptr<Writer> writer;  // none when read-only
  std::unique_ptr<Reader> load_reader, query_reader;
  Loss loss;                         // found by this opening
  std::optional<Instant> opened_at;  // none when read-only

  // Enqueues the write, unless the store is read-only.
  template <class NewWrite, class T, class... Args>
  void write(async::Done<Result<T>> done, Args... args) {
    if (!writer) return answer_later(loop, std::move(done), read_only_error());
    writer->write(std::make_unique<NewWrite>(std::move(args)..., std::move(done)));
  }
};

namespace {

Error cannot(const std::string& path, const SqlError& error) { return cannot_open(path, error); }

Result<std::unique_ptr<Writer>> open_writer(const SqliteOptions& options, Loss& loss) {
  auto opened = Database::open({.path = options.path, .vfs = options.vfs, .busy = options.busy});
  if (!opened) return std::unexpected(cannot(options.path, opened.error()));
  auto db = std::make_unique<Database>(*std::move(opened));
  const LossOptions loss_options{.accept = options.accept_loss,
                                 .is_loss_certain = options.is_loss_certain,
                                 .nothing_lost = options.nothing_lost,
                                 .at = options.clock.now(),
                                 .by = options.accepted_by};
  AE_ASSIGN(const bool no_tables, has_no_tables(*db, options.path));
  if (no_tables && (!loss_options.accept || loss_options.nothing_lost))
    return std::unexpected(store_missing(options.path));
  AE_TRY(prepare_schema(*db, options.path));
  auto tables = Tables::open(*db);
  if (!tables) return std::unexpected(cannot(options.path, tables.error()));
  AE_ASSIGN(loss, find_loss(*db, options.path, no_tables, loss_options));
  const auto begin = [&]() -> Sql<void> {
    AE_TRY(db->execute("BEGIN IMMEDIATE"));
    AE_TRY(accept_loss(*db, loss, loss_options));
    AE_TRY(tables->end_leases());
    AE_TRY(tables->set_fairness_label(options.fair_by));
    return db->execute("COMMIT");
  };
  if (const auto begin_result = begin(); !begin_result) {
    return std::unexpected(cannot(options.path, begin_result.error()));
  }
  tables->set_position(loss.identity.at);
  const WriterLimits limits{.group_writes = options.group_writes,
                            .group_bytes = options.group_bytes,
                            .wal_bytes = options.wal_bytes,
                            .idle = options.idle,
                            .busy = options.busy,
                            .rewrite_bytes = options.rewrite_bytes,
                            .readers = options.readers};
  return std::make_unique<Writer>(
      options.loop, std::move(db), *std::move(tables), limits,
      StoreFile{.path = options.path, .position_file = PositionFile(position_path(options.path))});
}

bool has_wal(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path + "-wal", error);
  return !error && size > 0;
}

Result<std::unique_ptr<Reader>> open_reader(const SqliteOptions& options) {
  Database::Options db_options{
      .path = options.path, .read_only = true, .vfs = options.vfs, .busy = options.busy};
  const auto try_open = [&]() -> Sql<Database> {
    AE_ASSIGN(Database db, Database::open(db_options));
    AE_TRY(db.integer("SELECT count(*) FROM sqlite_schema"));
    return db;
  };
  auto db = try_open();
  if (!db && options.read_only && !has_wal(options.path)) {
    db_options.immutable = true;  // a folder in which -shm cannot be created
    db = try_open();
  }
  if (!db) return std::unexpected(cannot(options.path, db.error()));
  if (options.read_only) AE_TRY(check_schema(*db, options.path));
  auto statements = ReadStatements::open(*std::move(db));
  if (!statements) return std::unexpected(cannot(options.path, statements.error()));
  return std::make_unique<Reader>(*std::move(statements));
}

// Maps a database error to `unavailable`: a read changes nothing.
template <class T>
Result<T> answer_of(Sql<Result<T>> answer) {
  if (!answer) return fail(Code::unavailable, answer.error().text());
  return *std::move(answer);
}
template <class T>
Result<T> answer_of(Sql<T> answer) {
  if (!answer) return fail(Code::unavailable, answer.error().text());
  return *std::move(answer);
}

}  // namespace

Status check_for_lost_writes(const std::string& given) {
  const std::string path = resolve_symlinks(given);
  AE_TRY(check_file(path));
  if (is_file_missing(path)) return std::unexpected(store_missing(path));
  auto db = Database::open({.path = path, .read_only = true});
  if (!db) return {};
  if (const auto no_tables = has_no_tables(*db, path); no_tables && *no_tables)
    return std::unexpected(store_missing(path));
  if (!check_schema(*db, path)) return {};
  const Status check = check_for_loss(*db, path);
  return check || check.error().code != Code::store_rolled_back ? Status() : check;
}

SqliteStore::SqliteStore(std::unique_ptr<Impl> parts) : impl_(std::move(parts)) {}

Result<std::unique_ptr<SqliteStore>> SqliteStore::open(const SqliteOptions& requested) {
  SqliteOptions options = requested;
  options.path = resolve_symlinks(requested.path);
  AE_TRY(check_file(options.path));
  auto parts =
      std::make_unique<Impl>(Impl{options.loop, options.clock, {}, {}, {}, {}, {}, {}, {}});
  if (options.read_only) {
    std::error_code error;
    if (!std::filesystem::exists(options.path, error)) {
      return fail(Code::not_found, "no store at {} yet: run a job first", options.path);
    }
  } else {
    AE_TRY(create_parent_folder(options.path));
    AE_ASSIGN(parts->lock, LockFile::acquire(lock_path(options.path)));
    parts->opened_at = options.clock.now();
    if (is_file_missing(options.path) && (!options.accept_loss || options.nothing_lost)) {
      return std::unexpected(store_missing(options.path));
    }
    AE_TRY(create_database_file(options.path));
    AE_ASSIGN(parts->file_lock, LockFile::lock_database(options.path));
    AE_ASSIGN(parts->writer, open_writer(options, parts->loss));
  }
  AE_ASSIGN(parts->load_reader, open_reader(options));
  AE_ASSIGN(parts->query_reader, open_reader(options));
  return std::unique_ptr<SqliteStore>(new SqliteStore(std::move(parts)));
}

SqliteStore::~SqliteStore() {
  impl_->query_reader.reset();
  impl_->load_reader.reset();
  impl_->writer.reset();
}

namespace {

// Runs a query on a reader and posts its answer.
template <class T, class Read>
void enqueue(async::Loop& loop, Reader& reader, async::Done<Result<T>> done, Read read) {
  reader.enqueue(
      [&loop, done = std::move(done), read = std::move(read)](ReadStatements& statements) mutable {
        answer_later(loop, std::move(done), answer_of(read(statements)));
      });
}

}  // namespace

void SqliteStore::commit(Batch batch, async::Done<Result<CommitResult>> done) {
  check_batch(batch);
  impl_->write<CommitWrite>(std::move(done), std::move(batch), now());
}

void SqliteStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  impl_->write<InboxWrite>(std::move(done), std::move(job), std::move(entry));
}

void SqliteStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  check_claim(request);
  impl_->write<ClaimWrite>(std::move(done), std::move(request), now());
}

void SqliteStore::claim_job(JobId job, ClaimRequest request,
                            async::Done<Result<std::optional<Lease>>> done) {
  check_claim(request);
  impl_->write<ClaimJobWrite>(std::move(done), std::move(job), std::move(request), now());
}

void SqliteStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                            async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  impl_->write<HeartbeatWrite>(std::move(done), std::move(held), lease, now());
}

void SqliteStore::list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  enqueue(
      impl_->loop, *impl_->load_reader, std::move(done),
      [limit, at = now()](ReadStatements& statements) { return statements.list_due(limit, at); });
}

void SqliteStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [at = now()](ReadStatements& statements) { return statements.next_due(at); });
}

// After a disk error it is unknown whether the last commit is durable.
std::optional<Error> SqliteStore::stopped() const {
  return impl_->writer ? impl_->writer->stopped() : std::nullopt;
}

void SqliteStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  if (auto error = stopped()) return answer_later(impl_->loop, std::move(done), *std::move(error));
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [job = std::move(job), from_seq](ReadStatements& statements) {
            return statements.load(job, from_seq);
          });
}

void SqliteStore::load_window(JobId job, WindowRequest window,
                              async::Done<Result<LogWindow>> done) {
  if (auto error = stopped()) return answer_later(impl_->loop, std::move(done), *std::move(error));
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [job = std::move(job), window](ReadStatements& statements) {
            return statements.load_window(job, window);
          });
}

void SqliteStore::read_inbox_entry(JobId job, std::string id,
                                   async::Done<Result<InboxEntryState>> done) {
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [job = std::move(job), id = std::move(id)](ReadStatements& statements) {
            return statements.read_inbox_entry(job, id);
          });
}

void SqliteStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [filter = std::move(filter)](ReadStatements& statements) {
            return statements.query(filter);
          });
}

void SqliteStore::list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [filter = std::move(filter)](ReadStatements& statements) {
            return statements.list_ended(filter);
          });
}

void SqliteStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  check_pruning(pruning);
  impl_->write<PruneWrite>(std::move(done), std::move(pruning));
}

void SqliteStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  impl_->write<RedactWrite>(std::move(done), std::move(redaction));
}

void SqliteStore::erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) {
  impl_->write<EraseWrite>(std::move(done));
}

void SqliteStore::append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) {
  impl_->write<AuditWrite>(std::move(done), std::move(entry));
}

void SqliteStore::count_jobs(async::Done<Result<JobStats>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [at = now()](ReadStatements& statements) { return statements.count_jobs(at); });
}

void SqliteStore::count_matching(CountFilter filter, async::Done<Result<JobCounts>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [filter = std::move(filter)](ReadStatements& statements) {
            return statements.count_matching(filter);
          });
}

void SqliteStore::read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [after](ReadStatements& statements) { return statements.read_audit_log(after); });
}

Instant SqliteStore::now() { return impl_->clock.now(); }
bool SqliteStore::owned() const { return impl_->writer != nullptr; }
std::optional<Instant> SqliteStore::opened_at() const { return impl_->opened_at; }

const std::string& SqliteStore::timeline() const { return impl_->loss.identity.at.timeline; }
bool SqliteStore::was_recreated() const { return impl_->loss.no_tables; }
bool SqliteStore::accepting() const { return impl_->loss.accepting; }

void SqliteStore::finish_accepting(async::Done<Result<void>> done) {
  AE_CHECK(impl_->writer != nullptr);
  impl_->loss.accepting = false;
  impl_->writer->write(std::make_unique<FinishAcceptingWrite>(std::move(done)));
}

SqliteStats SqliteStore::stats() const {
  if (!impl_->writer) return {};
  const WriterStats& stats = impl_->writer->stats();
  return {.writes = stats.writes, .groups = stats.groups, .wal_bytes = stats.wal_bytes};
}

}  // namespace ae::store

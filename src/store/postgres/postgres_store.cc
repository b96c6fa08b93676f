#include "store/postgres/postgres_store.h"

#include <set>
#include <utility>

#include "async/boot_clock.h"
#include "store/answers.h"
#include "store/postgres/counts.h"
#include "store/postgres/erase_dropped.h"
#include "store/postgres/hints.h"
#include "store/postgres/job_stats.h"
#include "store/postgres/location.h"
#include "store/postgres/reader.h"
#include "store/postgres/redaction.h"
#include "store/postgres/schema.h"
#include "store/postgres/statements.h"
#include "store/postgres/views.h"
#include "store/postgres/writer.h"
#include "store/rules.h"

namespace ae::store {

using namespace postgres;  // NOLINT: this file is where the parts come together

namespace {

// Shared with hints that are being posted to the loop when the store closes.
struct HintSink {
  std::function<void(const Hint&)> callback;
};

// IdleNotifier: notifies other processes of jobs that have ended or wait. It runs after the commit
// is answered, on the query connection, at most once per kNotifyInterval, so it costs commits
// nothing. Shared with answers that arrive after the store has closed. Threads: the loop's.
class IdleNotifier : public std::enable_shared_from_this<IdleNotifier> {
 public:
  IdleNotifier(async::Loop& loop, std::string channel)
      : loop_(loop), channel_(std::move(channel)) {}
  void begin(Reader& reader) { reader_ = &reader; }
  void end() { reader_ = nullptr; }

  void on_idle(const JobId& job) {
    if (reader_ == nullptr || jobs_.size() >= kIdleJobsMax) return;
    jobs_.insert(job);
    if (!is_paused_) notify_now();
  }

 private:
  static constexpr Duration kNotifyInterval = std::chrono::milliseconds(20);
  static constexpr std::size_t kIdleJobsMax = 4096;

  void notify_now() {
    is_paused_ = true;
    reader_->enqueue([channel = channel_, jobs = std::exchange(jobs_, {})](Session& session) {
      auto connection = session.connection();
      if (!connection) return;
      // Lost notifications are harmless: the receivers also poll.
      [[maybe_unused]] const auto done = postgres::notify(**connection, channel, idle_texts(jobs));
    });
    loop_.after(kNotifyInterval, [self = shared_from_this()] {
      self->is_paused_ = false;
      if (self->reader_ != nullptr && !self->jobs_.empty()) self->notify_now();
    });
  }

  async::Loop& loop_;
  const std::string channel_;
  Reader* reader_ = nullptr;  // none when the store has closed
  std::set<JobId> jobs_;
  bool is_paused_ = false;
};

}  // namespace

struct PostgresStore::Impl {
  Impl(async::Loop& on, async::Clock* instead) : loop(on), clock(instead) {}

  async::Loop& loop;
  async::Clock* const clock;  // of a test
  async::BootClock boot_clock;
  DatabaseClock database_clock{boot_clock};
  std::shared_ptr<HintSink> sink = std::make_shared<HintSink>();
  std::unique_ptr<Writer> writer;  // none when read-only
  std::unique_ptr<Reader> load_reader, query_reader;
  std::shared_ptr<RollbackGuard> rollback_guard;  // none when read-only
  std::shared_ptr<IdleNotifier> idle_notifier;    // none when read-only
  std::string store_id, schema;
  std::size_t rewrite_bytes = 0;
  bool accepting = false;

  // Enqueues the write, unless the store is read-only.
  template <class NewWrite, class T, class... Args>
  void write(async::Done<Result<T>> done, Args... args) {
    if (!writer) return answer_later(loop, std::move(done), read_only_error());
    writer->write(std::make_unique<NewWrite>(std::move(args)..., std::move(done)));
  }
};

namespace {

template <class T>
Result<T> inner(Result<T> answer) {
  return answer;
}
template <class T>
Result<T> inner(T answer) {
  return answer;
}

// Runs a query on a reader and posts its answer. If the connection is lost, it is repeated once.
template <class T, class Query>
void enqueue(async::Loop& loop, Reader& reader, async::Done<Result<T>> done, Query query) {
  reader.enqueue(
      [&loop, done = std::move(done), query = std::move(query)](Session& session) mutable {
        const auto answer = [&]() -> Result<T> {
          for (bool again = false;; again = true) {
            auto connection = session.connection();
            if (!connection) return std::unexpected(std::move(connection).error());
            auto found = query(**connection);
            if (found) return inner<T>(*std::move(found));
            if (!found.error().connection_lost || again)
              return std::unexpected(unavailable_error(found.error()));
          }
        };
        answer_later(loop, std::move(done), answer());
      });
}

bool has_nul(std::string_view text) { return text.find('\0') != text.npos; }

// PostgreSQL stores no NUL characters in texts; our own ids contain none.
bool has_no_nul(const Batch& batch) {
  const auto* create = std::get_if<Batch::Create>(&batch.authority);
  if (create == nullptr) return true;
  const NewJob& job = *create->job;
  bool has_any_nul = has_nul(job.agent) || has_nul(job.idempotency_key) || has_nul(job.queue);
  for (const auto& [key, value] : job.labels) has_any_nul |= has_nul(key) || has_nul(value);
  for (const std::string& needed : job.capabilities) has_any_nul |= has_nul(needed);
  return !has_any_nul;
}

Error no_address() {
  return {Code::usage,
          "invalid address of a PostgreSQL store: use postgres://USER@HOST:PORT/DATABASE, with "
          "libpq parameters after a ?"};
}

// Checks for a loss and accepts it. True: a loss is being accepted, now or since an earlier
// opening.
Result<bool> accept(Connection& connection, RollbackGuard& rollback_guard,
                    const Session::Options& session_options, const PostgresOptions& options) {
  AE_ASSIGN(const StoreIdentity identity,
            read_store_identity(connection, session_options.store_id));
  AE_ASSIGN(auto loss, rollback_guard.find_loss(connection, identity));
  AE_ASSIGN(const auto copied, find_move(connection));
  if (loss && options.nothing_lost) AE_TRY(rollback_guard.check_unopened(connection));
  if (!loss && !options.nothing_lost) loss = copied;
  if (!loss && !identity.accepting && options.is_loss_certain)
    loss = "it was restored from a backup";
  if (!loss && !copied) return identity.accepting;
  connection.add_unprepared(kServerTime.sql);
  auto now = connection.run();
  if (!now) return std::unexpected(unavailable_error(now.error()));
  const Instant at = now->back().instant(0, 0);
  if (!loss) {
    AE_TRY(RollbackGuard::accept_move(connection, *copied, at, options.accepted_by));
    return identity.accepting;
  }
  AE_TRY(rollback_guard.accept(connection, *loss, at, options.accepted_by));
  return true;
}

Error nul_not_allowed() {
  return {Code::input_invalid,
          "an agent, key, label, capability or message id holds a NUL character, which a "
          "PostgreSQL store cannot keep: leave it out"};
}

}  // namespace

Result<Migration> migrate_postgres(const std::string& url, const MigrationOptions& options,
                                   const std::string& schema) {
  if (!is_connection_string(url)) return std::unexpected(no_address());
  // The server sends nothing while it rewrites a table.
  constexpr std::chrono::hours kWork{24};
  AE_ASSIGN(Connection connection,
            Session::open_first({.connection = {.url = url, .response_timeout = kWork},
                                 .params = {.schema = schema}}));
  Migration done{.from = 0, .to = newest_layout()};
  if (options.check_only) {
    AE_ASSIGN(done.from, layout_of(connection, schema));
  } else {
    AE_ASSIGN(done.from, prepare_schema(connection, schema, done.to, options.lock_timeout));
  }
  return done;
}

Status check_rollback(const std::string& url, const std::string& guard_dir) {
  const std::string schema = "aetheris";
  auto connection = Session::open({.connection = {.url = url}, .params = {.schema = schema}});
  if (!connection || !check_schema(*connection, schema)) return {};
  const auto id = store_id(*connection);
  if (!id) return {};
  const Status check = RollbackGuard(*id, guard_dir, false).check_unopened(*connection);
  if (!check && check.error().code == Code::store_rolled_back) return check;
  const auto copied = find_move(*connection);
  if (copied && *copied) return std::unexpected(move_not_accepted(**copied));
  return {};
}

PostgresStore::PostgresStore(std::unique_ptr<Impl> parts) : impl_(std::move(parts)) {}

Result<std::unique_ptr<PostgresStore>> PostgresStore::open(const PostgresOptions& options) {
  Session::Options session_options{
      .connection = {.url = options.url,
                     .connect_timeout = options.connect_timeout,
                     .response_timeout = options.response_timeout},
      .params = {.schema = options.schema, .allow_no_fsync = options.allow_no_fsync},
      .store_id = {},
      .plan_max_age = options.plan_max_age};
  if (!is_connection_string(options.url)) return std::unexpected(no_address());
  AE_ASSIGN(Connection first, Session::open_first(session_options));
  if (options.read_only || !options.create) {
    AE_TRY(check_schema(first, options.schema));
  } else {
    AE_TRY(prepare_schema(first, options.schema));
  }
  if (!options.read_only && options.fair_by) AE_TRY(set_fairness_label(first, *options.fair_by));
  AE_ASSIGN(session_options.store_id, store_id(first));
  bool accepting = false;
  if (!options.read_only) {
    session_options.rollback_guard = std::make_shared<RollbackGuard>(
        session_options.store_id, options.rollback_guard_dir, options.accept_loss);
    if (options.accept_loss) {
      AE_ASSIGN(accepting,
                accept(first, *session_options.rollback_guard, session_options, options));
    }
    AE_TRY(session_options.rollback_guard->check(first));
    AE_ASSIGN(const auto copied, find_move(first));
    if (copied) return std::unexpected(move_not_accepted(*copied));
    AE_TRY(save_location(first));
  }
  AE_ASSIGN(Connection second, Session::open(session_options));
  AE_ASSIGN(Connection third, Session::open(session_options));
  auto parts = std::make_unique<Impl>(options.loop, options.clock);
  parts->rollback_guard = session_options.rollback_guard;
  parts->store_id = session_options.store_id;
  parts->schema = options.schema;
  parts->rewrite_bytes = options.rewrite_bytes;
  parts->accepting = accepting;
  if (auto clock_read = read_database_time(first, parts->database_clock); !clock_read) {
    return std::unexpected(unavailable_error(clock_read.error()));
  }
  const std::string channel = options.schema;
  if (!options.read_only) {
    const WriterLimits limits{.group_writes = options.group_writes,
                              .group_bytes = options.group_bytes};
    parts->writer =
        std::make_unique<Writer>(options.loop, Session(session_options, std::move(first)),
                                 parts->database_clock, channel, limits);
  }
  const auto on_hint = [loop = &options.loop, sink = parts->sink, writer = parts->writer.get()](
                           std::string_view hint, int backend_pid) {
    if (writer != nullptr && backend_pid != 0 && backend_pid == writer->backend_pid())
      return;  // our own
    loop->post([sink, parsed = parse_hint(hint)] {
      if (sink->callback) sink->callback(parsed);
    });
  };
  parts->load_reader = std::make_unique<Reader>(Session(session_options, std::move(second)),
                                                Reader::ListenOptions{});
  parts->query_reader = std::make_unique<Reader>(
      Session(session_options, std::move(third)),
      options.read_only ? Reader::ListenOptions{}
                        : Reader::ListenOptions{listened_channels(channel), on_hint});
  if (!options.read_only) {
    parts->idle_notifier = std::make_shared<IdleNotifier>(options.loop, idle_channel(channel));
    parts->idle_notifier->begin(*parts->query_reader);
  }
  return std::unique_ptr<PostgresStore>(new PostgresStore(std::move(parts)));
}

PostgresStore::~PostgresStore() {
  impl_->sink->callback = nullptr;
  if (impl_->idle_notifier) impl_->idle_notifier->end();
  impl_->query_reader.reset();
  impl_->load_reader.reset();
  impl_->writer.reset();
}

std::optional<Instant> PostgresStore::time() const {
  if (impl_->clock == nullptr) return std::nullopt;
  return impl_->clock->now();
}

void PostgresStore::commit(Batch batch, async::Done<Result<CommitResult>> done) {
  check_batch(batch);
  if (!impl_->writer) return answer_later(impl_->loop, std::move(done), read_only_error());
  if (!has_no_nul(batch)) return answer_later(impl_->loop, std::move(done), nul_not_allowed());
  if (batch.sealed && !is_runnable(batch.row.status)) {
    done = [idle_notifier = impl_->idle_notifier, job = batch.job,
            done = std::move(done)](Result<CommitResult> answer) mutable {
      if (answer) idle_notifier->on_idle(job);
      done(std::move(answer));
    };
  }
  impl_->writer->write(std::make_unique<CommitWrite>(std::move(batch), time(), std::move(done)));
}

void PostgresStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  if (!impl_->writer) return answer_later(impl_->loop, std::move(done), read_only_error());
  if (has_nul(entry.id)) return answer_later(impl_->loop, std::move(done), nul_not_allowed());
  impl_->writer->write(
      std::make_unique<InboxWrite>(std::move(job), std::move(entry), time(), std::move(done)));
}

void PostgresStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  check_claim(request);
  impl_->write<ClaimWrite>(std::move(done), std::move(request), time());
}

void PostgresStore::claim_job(JobId job, ClaimRequest request,
                              async::Done<Result<std::optional<Lease>>> done) {
  check_claim(request);
  impl_->write<ClaimJobWrite>(std::move(done), std::move(job), std::move(request), time());
}

void PostgresStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                              async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  impl_->write<HeartbeatWrite>(std::move(done), std::move(held), lease, time());
}

void PostgresStore::list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [limit, at = time(), clock = &impl_->database_clock](Connection& connection) {
            return postgres::list_due(connection, limit, at, *clock);
          });
}

void PostgresStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [at = time(), clock = &impl_->database_clock](Connection& connection) {
            return postgres::next_due(connection, at, *clock);
          });
}

void PostgresStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [job = std::move(job), from_seq](Connection& connection) {
            return postgres::load(connection, job, from_seq);
          });
}

void PostgresStore::load_window(JobId job, WindowRequest window,
                                async::Done<Result<LogWindow>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [job = std::move(job), window](Connection& connection) {
            return postgres::load_window(connection, job, window);
          });
}

void PostgresStore::read_inbox_entry(JobId job, std::string id,
                                     async::Done<Result<InboxEntryState>> done) {
  enqueue(impl_->loop, *impl_->load_reader, std::move(done),
          [job = std::move(job), id = std::move(id)](Connection& connection) {
            return postgres::read_inbox_entry(connection, job, id);
          });
}

void PostgresStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [filter = std::move(filter)](Connection& connection) {
            return postgres::query(connection, filter);
          });
}

void PostgresStore::list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [filter = std::move(filter)](Connection& connection) {
            return postgres::list_ended(connection, filter);
          });
}

void PostgresStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  check_pruning(pruning);
  impl_->write<PruneWrite>(std::move(done), std::move(pruning));
}

void PostgresStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  impl_->write<RedactWrite>(std::move(done), std::move(redaction));
}

// Runs on the query connection and blocks queries meanwhile: 10 s at most.
void PostgresStore::erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) {
  if (!impl_->writer) return answer_later(impl_->loop, std::move(done), read_only_error());
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [schema = impl_->schema, most = impl_->rewrite_bytes](Connection& connection) {
            return postgres::erase_dropped_values(connection, schema, most);
          });
}

void PostgresStore::append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) {
  impl_->write<AuditWrite>(std::move(done), std::move(entry));
}

void PostgresStore::read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [after](Connection& connection) { return postgres::read_audit_log(connection, after); });
}

void PostgresStore::count_jobs(async::Done<Result<JobStats>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [at = time()](Connection& connection) { return postgres::count_jobs(connection, at); });
}

void PostgresStore::count_matching(CountFilter filter, async::Done<Result<JobCounts>> done) {
  enqueue(impl_->loop, *impl_->query_reader, std::move(done),
          [filter = std::move(filter)](Connection& connection) {
            return postgres::count_matching(connection, filter);
          });
}

void PostgresStore::announce(std::string worker, std::string announcement, Duration ttl) {
  if (!impl_->writer || has_nul(worker)) return;
  impl_->query_reader->enqueue([worker = std::move(worker), announcement = std::move(announcement),
                                ttl](Session& session) {
    auto connection = session.connection();
    if (!connection) return;
    // Best effort: the next announcement repeats it, and no decision depends on it.
    [[maybe_unused]] const auto done = postgres::announce(**connection, worker, announcement, ttl);
  });
}

void PostgresStore::on_hint(std::function<void(const Hint&)> callback) {
  impl_->sink->callback = std::move(callback);
}

Instant PostgresStore::now() {
  return impl_->clock != nullptr ? impl_->clock->now() : impl_->database_clock.now();
}

Instant PostgresStore::latest_now() {
  return impl_->clock != nullptr ? impl_->clock->now() : impl_->database_clock.latest();
}

bool PostgresStore::accepting() const { return impl_->accepting; }

const std::string& PostgresStore::identity() const { return impl_->store_id; }

std::string PostgresStore::timeline() const {
  return impl_->rollback_guard ? impl_->rollback_guard->timeline() : std::string();
}

void PostgresStore::finish_accepting(async::Done<Result<void>> done) {
  AE_CHECK(impl_->writer != nullptr);
  impl_->accepting = false;
  impl_->writer->write(std::make_unique<FinishAcceptingWrite>(std::move(done)));
}

PostgresStats PostgresStore::stats() const {
  if (!impl_->writer) return {};
  const WriterStats& stats = impl_->writer->stats();
  return {.writes = stats.writes,
          .groups = stats.groups,
          .plain = stats.plain,
          .retried = stats.retried,
          .reconnects = stats.reconnects};
}

}  // namespace ae::store

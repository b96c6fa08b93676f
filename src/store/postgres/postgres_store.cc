#include "store/postgres/postgres_store.h"

#include <set>
#include <utility>

#include "async/boot_clock.h"
#include "store/postgres/census.h"
#include "store/postgres/hints.h"
#include "store/postgres/place.h"
#include "store/postgres/reader.h"
#include "store/postgres/redaction.h"
#include "store/postgres/schema.h"
#include "store/postgres/views.h"
#include "store/postgres/wipe.h"
#include "store/postgres/writer.h"
#include "store/rules.h"

namespace ae::store {

using namespace postgres;  // NOLINT: this file is where the parts come together

namespace {

// Shared with hints that are under way to the loop when the store closes.
struct HintSink {
  std::function<void(const Hint&)> hear;
};

// Tells those who wait elsewhere that jobs have ended or wait. Not with the commit but behind its answer, on the connection of
// questions, and not more often than kRestPause: what is committed pays nothing for it. Shared with answers that come when
// the store has closed. Threads: the loop's.
class RestTeller : public std::enable_shared_from_this<RestTeller> {
 public:
  RestTeller(async::Loop& loop, std::string channel) : loop_(loop), channel_(std::move(channel)) {}
  void begin(Reader& reader) { reader_ = &reader; }
  void end() { reader_ = nullptr; }

  void rests(const JobId& job) {
    if (reader_ == nullptr || jobs_.size() >= kRestingMax) return;
    jobs_.insert(job);
    if (!pausing_) tell();
  }

 private:
  static constexpr Duration kRestPause = std::chrono::milliseconds(20);
  static constexpr std::size_t kRestingMax = 4096;

  void tell() {
    pausing_ = true;
    reader_->ask([channel = channel_, jobs = std::exchange(jobs_, {})](Session& session) {
      auto connection = session.connection();
      if (!connection) return;
      // What cannot be said is found by those who ask now and then.
      [[maybe_unused]] const auto told =
          postgres::notify(**connection, channel, resting_texts(jobs));
    });
    loop_.after(kRestPause, [self = shared_from_this()] {
      self->pausing_ = false;
      if (self->reader_ != nullptr && !self->jobs_.empty()) self->tell();
    });
  }

  async::Loop& loop_;
  const std::string channel_;
  Reader* reader_ = nullptr;  // none when the store has closed
  std::set<JobId> jobs_;
  bool pausing_ = false;
};

}  // namespace

struct PostgresStore::Parts {
  Parts(async::Loop& on, async::Clock* instead) : loop(on), clock(instead) {}

  async::Loop& loop;
  async::Clock* const clock;  // of a test
  async::BootClock boot_clock;
  DatabaseClock database_clock{boot_clock};
  std::shared_ptr<HintSink> sink = std::make_shared<HintSink>();
  std::unique_ptr<Writer> writer;  // none when read-only
  std::unique_ptr<Reader> loads, questions;
  std::shared_ptr<Recollection> recollection;  // none when read-only
  std::shared_ptr<RestTeller> resting;         // none when read-only
  std::string store_id, schema;
  std::size_t rewrite_bytes = 0;
  bool accepting = false;
};

namespace {

template <class T>
void answer_later(async::Loop& loop, async::Done<Result<T>> done, Error error) {
  loop.post([done = std::move(done), error = std::move(error)]() mutable {
    done(std::unexpected(std::move(error)));
  });
}

Error only_reading() {
  return {Code::unavailable, "this store was opened for reading only: nothing can be written"};
}

template <class T>
Result<T> inner(Result<T> answer) {
  return answer;
}
template <class T>
Result<T> inner(T answer) {
  return answer;
}

// Asks a reader and posts its answer. A question that lost its connection is asked once more.
template <class T, class Ask>
void ask(async::Loop& loop, Reader& reader, async::Done<Result<T>> done, Ask question) {
  reader.ask([&loop, done = std::move(done),
              question = std::move(question)](Session& session) mutable {
    const auto answer = [&]() -> Result<T> {
      for (bool again = false;; again = true) {
        auto connection = session.connection();
        if (!connection) return std::unexpected(std::move(connection).error());
        auto found = question(**connection);
        if (found) return inner<T>(*std::move(found));
        if (!found.error().lost || again) return std::unexpected(cannot(found.error()));
      }
    };
    loop.post([done = std::move(done), result = answer()]() mutable { done(std::move(result)); });
  });
}

bool has_nul(std::string_view text) { return text.find('\0') != text.npos; }

// PostgreSQL keeps no text with a NUL character; our own ids have none.
bool can_keep(const Batch& batch) {
  const auto* create = std::get_if<Batch::Create>(&batch.authority);
  if (create == nullptr) return true;
  const NewJob& job = create->job;
  bool bad = has_nul(job.agent) || has_nul(job.idempotency_key) || has_nul(job.queue);
  for (const auto& [key, value] : job.labels) bad |= has_nul(key) || has_nul(value);
  for (const std::string& needed : job.capabilities) bad |= has_nul(needed);
  return !bad;
}

Error no_address() {
  return {Code::usage,
          "invalid address of a PostgreSQL store: use postgres://USER@HOST:PORT/DATABASE, with "
          "libpq parameters after a ?"};
}

// Is there a loss, or one that was accepted before and not finished? A new one is accepted here.
Result<bool> accept(Connection& connection, Recollection& recollection,
                    const Session::Options& wish, const PostgresOptions& options) {
  AE_ASSIGN(const StoreWord word, store_word(connection, wish.store_id));
  AE_ASSIGN(auto lost, recollection.missing(connection, word));
  AE_ASSIGN(const auto copied, moved(connection));
  if (lost && options.nothing_lost) AE_TRY(recollection.look(connection));
  if (!lost && !options.nothing_lost) lost = copied;
  if (!lost && !word.accepting && options.surely_lost) lost = "it was restored from a backup";
  if (!lost && !copied) return word.accepting;
  connection.add_once("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
  auto now = connection.run();
  if (!now) return std::unexpected(cannot(now.error()));
  const Instant at = now->back().instant(0, 0);
  if (!lost) {
    AE_TRY(Recollection::accept_move(connection, *copied, at, options.accepted_by));
    return word.accepting;
  }
  AE_TRY(recollection.accept(connection, *lost, at, options.accepted_by));
  return true;
}

Error cannot_keep() {
  return {Code::input_invalid,
          "an agent, key, label, capability or message id holds a NUL character, which a "
          "PostgreSQL store cannot keep: leave it out"};
}

}  // namespace

Result<Migration> migrate_postgres(const std::string& url, const MigrationWish& wish,
                                   const std::string& schema) {
  if (!is_address(url)) return std::unexpected(no_address());
  // A table that is written anew says nothing for as long as that takes.
  constexpr std::chrono::hours kWork{24};
  AE_ASSIGN(Connection connection,
            Session::open_first(
                {.connection = {.url = url, .answer_within = kWork}, .wish = {.schema = schema}}));
  Migration done{.from = 0, .to = newest_layout()};
  if (wish.check_only) {
    AE_ASSIGN(done.from, layout_of(connection, schema));
  } else {
    AE_ASSIGN(done.from, prepare_schema(connection, schema, done.to, wish.patience));
  }
  return done;
}

Status check_recollection(const std::string& url, const std::string& remembered_in) {
  const std::string schema = "aetheris";
  auto connection = Session::open({.connection = {.url = url}, .wish = {.schema = schema}});
  if (!connection || !check_schema(*connection, schema)) return {};
  const auto id = store_id(*connection);
  if (!id) return {};
  const Status stands = Recollection(*id, remembered_in, false).look(*connection);
  if (!stands && stands.error().code == Code::store_rolled_back) return stands;
  const auto copied = moved(*connection);
  if (copied && *copied) return std::unexpected(not_accepted(**copied));
  return {};
}

PostgresStore::PostgresStore(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<PostgresStore>> PostgresStore::open(const PostgresOptions& options) {
  Session::Options wish{
      .connection = {.url = options.url,
                     .connect_within = options.connect_within,
                     .answer_within = options.answer_within},
      .wish = {.schema = options.schema, .allow_no_fsync = options.allow_no_fsync},
      .store_id = {},
      .plans_age = options.plans_age};
  if (!is_address(options.url)) return std::unexpected(no_address());
  AE_ASSIGN(Connection first, Session::open_first(wish));
  if (options.read_only || !options.create) {
    AE_TRY(check_schema(first, options.schema));
  } else {
    AE_TRY(prepare_schema(first, options.schema));
  }
  if (!options.read_only && options.fair_by) AE_TRY(take_turns(first, *options.fair_by));
  AE_ASSIGN(wish.store_id, store_id(first));
  bool accepting = false;
  if (!options.read_only) {
    wish.recollection =
        std::make_shared<Recollection>(wish.store_id, options.remember_in, options.accept_loss);
    if (options.accept_loss) {
      AE_ASSIGN(accepting, accept(first, *wish.recollection, wish, options));
    }
    AE_TRY(wish.recollection->check(first));
    AE_ASSIGN(const auto copied, moved(first));
    if (copied) return std::unexpected(not_accepted(*copied));
    AE_TRY(remember_place(first));
  }
  AE_ASSIGN(Connection second, Session::open(wish));
  AE_ASSIGN(Connection third, Session::open(wish));
  auto parts = std::make_unique<Parts>(options.loop, options.clock);
  parts->recollection = wish.recollection;
  parts->store_id = wish.store_id;
  parts->schema = options.schema;
  parts->rewrite_bytes = options.rewrite_bytes;
  parts->accepting = accepting;
  if (auto asked = ask_time(first, parts->database_clock); !asked) {
    return std::unexpected(cannot(asked.error()));
  }
  const std::string channel = options.schema;
  if (!options.read_only) {
    const WriterLimits limits{.group_writes = options.group_writes,
                              .group_bytes = options.group_bytes};
    parts->writer = std::make_unique<Writer>(options.loop, Session(wish, std::move(first)),
                                             parts->database_clock, channel, limits);
  }
  const auto heard = [loop = &options.loop, sink = parts->sink, writer = parts->writer.get()](
                         std::string_view hint, int backend) {
    if (writer != nullptr && backend != 0 && backend == writer->backend()) return;  // our own
    loop->post([sink, said = hint_of(hint)] {
      if (sink->hear) sink->hear(said);
    });
  };
  parts->loads = std::make_unique<Reader>(Session(wish, std::move(second)), Reader::Listening{});
  parts->questions = std::make_unique<Reader>(
      Session(wish, std::move(third)),
      options.read_only ? Reader::Listening{}
                        : Reader::Listening{{channel, resting_channel(channel)}, heard});
  if (!options.read_only) {
    parts->resting = std::make_shared<RestTeller>(options.loop, resting_channel(channel));
    parts->resting->begin(*parts->questions);
  }
  return std::unique_ptr<PostgresStore>(new PostgresStore(std::move(parts)));
}

PostgresStore::~PostgresStore() {
  parts_->sink->hear = nullptr;
  if (parts_->resting) parts_->resting->end();
  parts_->questions.reset();
  parts_->loads.reset();
  parts_->writer.reset();
}

std::optional<Instant> PostgresStore::time() const {
  if (parts_->clock == nullptr) return std::nullopt;
  return parts_->clock->now();
}

void PostgresStore::commit(Batch batch, async::Done<Result<Committed>> done) {
  check_batch(batch);
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  if (!can_keep(batch)) return answer_later(parts_->loop, std::move(done), cannot_keep());
  if (batch.sealed && !may_run(batch.row.status)) {
    done = [resting = parts_->resting, job = batch.job,
            done = std::move(done)](Result<Committed> answer) mutable {
      if (answer) resting->rests(job);
      done(std::move(answer));
    };
  }
  parts_->writer->write(std::make_unique<CommitWrite>(std::move(batch), time(), std::move(done)));
}

void PostgresStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  if (has_nul(entry.id)) return answer_later(parts_->loop, std::move(done), cannot_keep());
  parts_->writer->write(
      std::make_unique<InboxWrite>(std::move(job), std::move(entry), time(), std::move(done)));
}

void PostgresStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  check_claim(request);
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  parts_->writer->write(std::make_unique<ClaimWrite>(std::move(request), time(), std::move(done)));
}

void PostgresStore::claim_job(JobId job, ClaimRequest request,
                              async::Done<Result<std::optional<Lease>>> done) {
  check_claim(request);
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  parts_->writer->write(
      std::make_unique<ClaimJobWrite>(std::move(job), std::move(request), time(), std::move(done)));
}

void PostgresStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                              async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  parts_->writer->write(
      std::make_unique<HeartbeatWrite>(std::move(held), lease, time(), std::move(done)));
}

void PostgresStore::due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  ask(parts_->loop, *parts_->loads, std::move(done),
      [limit, at = time(), clock = &parts_->database_clock](Connection& connection) {
        return postgres::due(connection, limit, at, *clock);
      });
}

void PostgresStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  ask(parts_->loop, *parts_->loads, std::move(done),
      [at = time(), clock = &parts_->database_clock](Connection& connection) {
        return postgres::next_due(connection, at, *clock);
      });
}

void PostgresStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<Loaded>> done) {
  ask(parts_->loop, *parts_->loads, std::move(done),
      [job = std::move(job), from_seq](Connection& connection) {
        return postgres::load(connection, job, from_seq);
      });
}

void PostgresStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  ask(parts_->loop, *parts_->questions, std::move(done),
      [filter = std::move(filter)](Connection& connection) {
        return postgres::query(connection, filter);
      });
}

void PostgresStore::ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  ask(parts_->loop, *parts_->questions, std::move(done),
      [filter = std::move(filter)](Connection& connection) {
        return postgres::ended(connection, filter);
      });
}

void PostgresStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  check_pruning(pruning);
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  parts_->writer->write(std::make_unique<PruneWrite>(std::move(pruning), std::move(done)));
}

void PostgresStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  parts_->writer->write(std::make_unique<RedactWrite>(std::move(redaction), std::move(done)));
}

// On the connection of questions, which wait meanwhile: 10 s at most.
void PostgresStore::wipe(async::Done<Result<std::vector<OldCopy>>> done) {
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  ask(parts_->loop, *parts_->questions, std::move(done),
      [schema = parts_->schema, most = parts_->rewrite_bytes](Connection& connection) {
        return postgres::wipe(connection, schema, most);
      });
}

void PostgresStore::record(AuditEntry entry, async::Done<Result<void>> done) {
  if (!parts_->writer) return answer_later(parts_->loop, std::move(done), only_reading());
  parts_->writer->write(std::make_unique<RecordWrite>(std::move(entry), std::move(done)));
}

void PostgresStore::audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  ask(parts_->loop, *parts_->questions, std::move(done),
      [after](Connection& connection) { return postgres::audit_log(connection, after); });
}

void PostgresStore::census(async::Done<Result<Census>> done) {
  ask(parts_->loop, *parts_->questions, std::move(done),
      [at = time()](Connection& connection) { return postgres::census(connection, at); });
}

void PostgresStore::announce(std::string worker, std::string says, Duration lasts) {
  if (!parts_->writer || has_nul(worker)) return;
  parts_->questions->ask(
      [worker = std::move(worker), says = std::move(says), lasts](Session& session) {
        auto connection = session.connection();
        if (!connection) return;
        // What could not be said now is said at the next announcement, and nothing is decided by it.
        [[maybe_unused]] const auto said = postgres::announce(**connection, worker, says, lasts);
      });
}

void PostgresStore::on_hint(std::function<void(const Hint&)> hear) {
  parts_->sink->hear = std::move(hear);
}

Instant PostgresStore::now() {
  return parts_->clock != nullptr ? parts_->clock->now() : parts_->database_clock.now();
}

Instant PostgresStore::latest_now() {
  return parts_->clock != nullptr ? parts_->clock->now() : parts_->database_clock.latest();
}

bool PostgresStore::accepting() const { return parts_->accepting; }

const std::string& PostgresStore::identity() const { return parts_->store_id; }

std::string PostgresStore::timeline() const {
  return parts_->recollection ? parts_->recollection->timeline() : std::string();
}

void PostgresStore::finish_accepting(async::Done<Result<void>> done) {
  AE_CHECK(parts_->writer != nullptr);
  parts_->accepting = false;
  parts_->writer->write(std::make_unique<AcceptedWrite>(std::move(done)));
}

PostgresStats PostgresStore::stats() const {
  if (!parts_->writer) return {};
  const WriterStats& stats = parts_->writer->stats();
  return {.writes = stats.writes,
          .groups = stats.groups,
          .again = stats.again,
          .reopened = stats.reopened};
}

}  // namespace ae::store

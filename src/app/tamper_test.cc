// Every change of the stored data of a job is detected and located.
//
// Method: a runtime creates small jobs on a store, fused and split, and leaves some of them with a
// call in flight. Then each byte of each stored value is changed, one at a time, and verify must
// report it: first in the data that a store returns, then in the rows of a real SQLite file, edited
// directly.
#include <fmt/core.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>

#include "api/views.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "runtime/scheduler/runtime.h"
#include "store/memory/memory_store.h"
#include "store/sqlite/sqlite_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::app {
namespace {

using runtime::Durability;
using testing::TestLoop;
using testing::TestRandom;
using testing::TestSteadyClock;

Value json(std::string_view text) {
  std::string quoted(text);
  std::ranges::replace(quoted, '\'', '"');
  auto value = parse_json(quoted);
  AE_CHECK(value.has_value(), quoted);
  return *value;
}

// Returns `{"id": n}`; fails a try on request; a call with {"hang": true} is recorded and never
// answered.
class FakeTool final : public tools::Tool {
 public:
  explicit FakeTool(async::Loop& loop) : loop_(loop) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).consume(call.invocation, call.try_no);
    if (call.args["hang"] == Value(true)) {
      call.note_in_flight(json("{'group':4711}"), [](Status) {});
      hanging_.push_back(std::move(done));
      return;
    }
    Outcome outcome{.kind = OutcomeKind::success,
                    .result = json("{'id':7,'what':'done'}"),
                    .external_id = "ext-7",
                    .elapsed = std::chrono::milliseconds(5)};
    if (call.args["fail"] == Value(true) && call.try_no == 1) {
      outcome = Outcome{.kind = OutcomeKind::failure,
                        .definite = true,
                        .retryable = true,
                        .error_code = "connect",
                        .error_message = "not reachable"};
    }
    loop_.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
      done(std::move(outcome));
    });
  }
  void abandon(const InvocationId&, std::uint32_t) override {}

 private:
  async::Loop& loop_;
  std::deque<async::Done<Outcome>> hanging_;
};

constexpr std::string_view kTool =
    "{'effect':'idempotent', 'on_in_doubt':'resend', 'timeout':'600s', 'grace':'30s',"
    " 'dedupe_window':'24h', 'version':'0123456789abcdef', 'retry':{'max_attempts':2,"
    " 'initial_backoff':'1ms', 'max_backoff':'1ms', 'multiplier':2, 'retry_on':['connect']}}";

std::shared_ptr<const engine::Plan> plan(std::string_view nodes) {
  const Value graph =
      json("{'schema':1, 'nodes':" + std::string(nodes) + ", 'output':'${ .steps }'" +
           ", 'tools':{'do':" + std::string(kTool) + "}}");
  auto compiled = engine::Plan::compile(graph);
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

const SigningKey& signing_key() {
  static const SigningKey key = SigningKey::from_seed({7});
  return key;
}

// Creates the jobs on a store: `done` has ended, `held` has a call in flight and a signal in its
// inbox.
class JobMaker {
 public:
  JobMaker(TestLoop& loop, store::Store& store, Durability durability)
      : loop_(loop), steady_(loop), store_(store) {
    tool_registry_.add("do", {std::make_unique<FakeTool>(loop), "0123456789abcdef"});
    runtime_.emplace(runtime::World{.loop = loop,
                                    .steady = steady_,
                                    .random = random_,
                                    .store = store,
                                    .tool_registry = tool_registry_,
                                    .signer = &signing_key()},
                     runtime::RuntimeOptions{.durability = durability}, nullptr);
  }
  void make_all() {
    make("done",
         "[{'id':'a','kind':'tool','tool':'do','args':{'fail':true}},"
         " {'id':'b','kind':'wait','wait':{'type':'signal','key':'go'},'needs':['a']}]",
         "completed", [&] { signal("done"); });
    make("held",
         "[{'id':'a','kind':'tool','tool':'do'},"
         " {'id':'h','kind':'tool','tool':'do','args':{'hang':true},'needs':['a']},"
         " {'id':'w','kind':'wait','wait':{'type':'signal','key':'go'}}]",
         "running", [] {});
    // Accepted by another process: it stays in the inbox until the lease holder is notified.
    const engine::ControlRequest request{
        .id = "act-1",
        .body = engine::SignalRequest{.correlation_key = "go", .payload = json("{'by':'Ada'}")}};
    store::InboxEntry entry{.id = request.id, .request = {}};
    entry.request = canonical(engine::with_checksum(
        engine::inbox_location(JobId("held"), request.id), request.to_json()));
    auto put = loop_.await<Result<void>>(
        [&](auto done) { store_.put_inbox(JobId("held"), entry, std::move(done)); });
    AE_CHECK(put.has_value());
  }

 private:
  void make(const char* id, std::string_view nodes, std::string_view status,
            const std::function<void()>& then) {
    runtime::NewJobRequest request{.job = JobId(id), .agent = "agent", .plan = plan(nodes)};
    request.labels = {{"made", "here"}};
    request.idempotency_key = id;
    const auto made = loop_.await<Result<runtime::CreateResult>>(
        [&](auto done) { runtime_->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    settle(id, status == "completed" ? "waiting" : status);
    then();
    settle(id, status);
  }
  void signal(const char* id) {
    const auto delivered = loop_.await<Result<Value>>([&](auto done) {
      runtime_->submit_request(
          JobId(id),
          {.body = engine::SignalRequest{.correlation_key = "go", .payload = json("'on'")}},
          std::move(done));
    });
    AE_CHECK(delivered.has_value(), delivered ? "" : delivered.error().message);
    const auto claimed = loop_.await<Result<bool>>(
        [&](auto done) { runtime_->claim_job(JobId(id), std::move(done)); });
    AE_CHECK(claimed.has_value() && *claimed);
  }
  // Waits until the job has this status and its log is stable.
  void settle(const char* id, std::string_view status) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::uint64_t last = 0;
    for (int same = 0; same < 20;) {
      AE_CHECK(std::chrono::steady_clock::now() < deadline, id);
      loop_.advance(std::chrono::milliseconds(1));
      const auto loaded = loop_.await<Result<store::LoadedJob>>(
          [&](auto done) { store_.load(JobId(id), 1, std::move(done)); });
      AE_CHECK(loaded.has_value());
      const bool is_same = loaded->row.status == status && loaded->row.last_seq == last;
      same = is_same ? same + 1 : 0;
      last = loaded->row.last_seq;
    }
  }

  TestLoop& loop_;
  TestSteadyClock steady_;
  TestRandom random_;
  store::Store& store_;
  runtime::ToolRegistry tool_registry_;
  std::optional<runtime::Runtime> runtime_;
};

store::LoadedJob load(TestLoop& loop, store::Store& store, const char* job) {
  auto loaded = loop.await<Result<store::LoadedJob>>(
      [&](auto done) { store.load(JobId(job), 1, std::move(done)); });
  AE_CHECK(loaded.has_value(), loaded ? "" : loaded.error().message);
  return *std::move(loaded);
}

std::vector<PublicKey> keys() { return {signing_key().public_key()}; }
Value verify_body(const char* job, const store::LoadedJob& loaded,
                  std::vector<PublicKey> by = keys()) {
  auto body = api::verify_body(JobId(job), loaded, std::move(by), {});
  AE_CHECK(body.has_value(), body ? "" : body.error().message);
  return *std::move(body);
}

// The detail of the first failed proof; "" if all hold.
std::string first_failed_proof(const Value& proof) {
  for (const auto& [name, one] : proof["proofs"].members()) {
    if (one["ok"] != Value(true)) return fmt::format("{}: {}", name, one.text("detail"));
  }
  return {};
}

// Keeps the text valid UTF-8: invalid UTF-8 would be detected without comparing content.
char flip_bit(char c) { return static_cast<char>(c ^ 1); }

struct StoredJobs {
  TestLoop loop;
  store::MemoryStore store{loop, loop};
  JobMaker job_maker;
  store::LoadedJob done, held;

  explicit StoredJobs(Durability durability) : job_maker(loop, store, durability) {
    job_maker.make_all();
    done = load(loop, store, "done");
    held = load(loop, store, "held");
  }
};

// Changes each byte of `text`, which is part of `loaded`, and checks the response of verify.
template <class Text>
std::size_t check_every_byte(const char* job, store::LoadedJob& loaded, Text& text,
                             const std::string& name, std::string_view expected) {
  const Text original = text;
  for (std::size_t at = 0; at < original.size(); ++at) {
    std::string changed(original);
    changed[at] = flip_bit(original[at]);
    text = changed;
    const Value proof = verify_body(job, loaded);
    EXPECT_EQ(proof["ok"], Value(false)) << name << " byte " << at;
    EXPECT_NE(first_failed_proof(proof).find(expected), std::string::npos)
        << name << " byte " << at << ": " << first_failed_proof(proof);
    text = original;
  }
  EXPECT_GT(original.size(), 0u) << name;
  return original.size();
}

std::size_t check_every_stored_byte(const char* job, store::LoadedJob& loaded) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < loaded.commits.size(); ++i) {
    bytes += check_every_byte(job, loaded, loaded.commits[i], fmt::format("commit {}", i), "event");
  }
  for (Blob& blob : loaded.blobs)
    bytes += check_every_byte(job, loaded, blob.bytes, "blob", "event");
  for (store::EffectRow& row : loaded.effects) {
    bytes += check_every_byte(job, loaded, row.record, "effect", "the effect of");
    bytes += check_every_byte(job, loaded, row.invocation.text, "effect's key", "the effect of");
    row.try_no ^= 2;
    EXPECT_NE(first_failed_proof(verify_body(job, loaded)).find("the effect of"),
              std::string::npos);
    row.try_no ^= 2;
  }
  for (store::LedgerRow& row : loaded.ledger) {
    bytes += check_every_byte(job, loaded, row.record, "entry", "the ledger's entry of");
    bytes += check_every_byte(job, loaded, row.state, "entry's state", "the ledger's entry of");
    bytes +=
        check_every_byte(job, loaded, row.invocation.text, "entry's key", "the ledger's entry of");
    row.try_no ^= 2;
    EXPECT_NE(first_failed_proof(verify_body(job, loaded)).find("the ledger's entry"),
              std::string::npos);
    row.try_no ^= 2;
  }
  for (store::InboxEntry& entry : loaded.inbox) {
    bytes += check_every_byte(job, loaded, entry.request, "request", "in the inbox");
    bytes += check_every_byte(job, loaded, entry.id, "request's id", "in the inbox");
  }
  for (std::string* text : {&loaded.row.status, &loaded.row.agent, &loaded.row.idempotency_key,
                            &loaded.row.labels[0].first, &loaded.row.labels[0].second}) {
    bytes += check_every_byte(job, loaded, *text, "row", "the job's row has");
  }
  if (loaded.signed_head) {
    bytes += check_every_byte(job, loaded, *loaded.signed_head, "signed head", "head");
  }
  return bytes;
}

void expect_verified(const char* job, const store::LoadedJob& loaded, std::string_view head) {
  const Value proof = verify_body(job, loaded);
  EXPECT_EQ(proof["ok"], Value(true)) << job << " " << canonical(proof);
  EXPECT_EQ(proof.text("head"), head) << canonical(proof);
}

AE_TEST_SLOW("tamper/a change of any byte that a fused job stores is detected") {
  StoredJobs stored(Durability::fused);
  expect_verified("done", stored.done, "intact");
  expect_verified("held", stored.held, "unsigned");  // it is still running
  EXPECT_EQ(stored.held.ledger.size(), 1u);
  EXPECT_EQ(stored.held.inbox.size(), 1u);
  EXPECT_GT(check_every_stored_byte("done", stored.done), 1500u);
  EXPECT_GT(check_every_stored_byte("held", stored.held), 1500u);
}

AE_TEST_SLOW("tamper/a change of any byte that a split job stores is detected") {
  StoredJobs stored(Durability::split);
  expect_verified("done", stored.done, "intact");
  expect_verified("held", stored.held, "unsigned");
  EXPECT_EQ(stored.done.effects.size(), 2u);
  EXPECT_EQ(stored.done.ledger.size(), 2u);
  EXPECT_EQ(stored.held.ledger.size(), 2u);
  EXPECT_GT(check_every_stored_byte("done", stored.done), 2500u);
  EXPECT_GT(check_every_stored_byte("held", stored.held), 2500u);
}

AE_TEST("tamper/a missing, duplicated or misplaced commit is detected") {
  const StoredJobs stored(Durability::split);
  const std::vector<std::string>& commits = stored.done.commits;
  for (std::size_t i = 0; i < commits.size(); ++i) {
    store::LoadedJob removed = stored.done, twice = stored.done;
    removed.commits.erase(removed.commits.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(first_failed_proof(verify_body("done", removed)).find("event"), std::string::npos)
        << i;
    EXPECT_EQ(verify_body("done", removed).text("head"),
              i + 1 == commits.size() ? "truncated" : "altered");
    twice.commits.insert(twice.commits.begin() + static_cast<std::ptrdiff_t>(i), commits[i]);
    EXPECT_EQ(verify_body("done", twice).text("head"), "altered") << i;
    for (std::size_t k = i + 1; k < commits.size(); ++k) {
      store::LoadedJob swapped = stored.done;
      std::swap(swapped.commits[i], swapped.commits[k]);
      EXPECT_EQ(verify_body("done", swapped).text("head"), "altered") << i << " " << k;
    }
  }
}

AE_TEST("tamper/a removed row is detected where the log requires it") {
  const StoredJobs stored(Durability::split);
  for (const auto& [job, whole] :
       {std::pair{"done", &stored.done}, std::pair{"held", &stored.held}}) {
    ASSERT_FALSE(whole->effects.empty()) << job;
    for (std::size_t i = 0; i < whole->effects.size(); ++i) {
      store::LoadedJob loaded = *whole;
      const auto row = loaded.effects.begin() + static_cast<std::ptrdiff_t>(i);
      const std::string name =
          fmt::format("the effect of {}, try {}, ", row->invocation.text, row->try_no);
      loaded.effects.erase(row);
      EXPECT_NE(first_failed_proof(verify_body(job, loaded)).find(name), std::string::npos)
          << job << " " << i << ": " << first_failed_proof(verify_body(job, loaded));
      EXPECT_NE(first_failed_proof(verify_body(job, loaded)).find("is missing"), std::string::npos);
    }
    store::LoadedJob none = *whole;
    none.effects.clear();
    EXPECT_NE(first_failed_proof(verify_body(job, none)).find("is missing"), std::string::npos)
        << job;
  }
  store::LoadedJob loaded = stored.held;
  const auto in_flight = [](const store::LedgerRow& row) { return row.state == "INFLIGHT"; };
  const auto row = std::ranges::find_if(loaded.ledger, in_flight);
  ASSERT_NE(row, loaded.ledger.end());
  const std::string name =
      fmt::format("the ledger's entry of {}, try 1, which", row->invocation.text);
  std::erase_if(loaded.ledger, in_flight);
  const std::string proof = first_failed_proof(verify_body("held", loaded));
  EXPECT_NE(proof.find(name), std::string::npos) << proof;
  EXPECT_NE(proof.find("is missing"), std::string::npos) << proof;
}

// Removes the last commits, and every trace of them except the signature.
store::LoadedJob truncate_log(const store::LoadedJob& whole, std::size_t commits) {
  store::LoadedJob loaded = whole;
  loaded.commits.resize(commits);
  Hash head;
  std::uint64_t last = 0;
  engine::State state;
  state.job = whole.row.id;
  for (const std::string& bytes : loaded.commits) {
    auto opened = open(whole.row.id, bytes, head, [&](const Hash& hash) -> Result<std::string> {
      for (const Blob& blob : whole.blobs) {
        if (blob.hash == hash) return blob.bytes;
      }
      return fail(Code::log_corrupt, "missing");
    });
    AE_CHECK(opened.has_value());
    for (const Event& event : opened->events) {
      auto applied =
          engine::apply(state, event.body, event.created_at, engine::uncached_plan_source());
      AE_CHECK(applied.has_value());
    }
    head = opened->head;
    last = opened->last_seq;
  }
  loaded.row.last_seq = last;
  loaded.row.head = head;
  if (loaded.commit_count) loaded.commit_count = commits;
  loaded.row.status = engine::to_text(state.status);
  loaded.effects.clear();
  loaded.ledger.clear();
  return loaded;
}

AE_TEST("tamper/a tail removed with all its traces is detected by the signed head") {
  const StoredJobs stored(Durability::fused);
  for (std::size_t left = 1; left < stored.done.commits.size(); ++left) {
    store::LoadedJob loaded = truncate_log(stored.done, left);
    EXPECT_EQ(verify_body("done", loaded).text("head"), "truncated") << left;
    EXPECT_EQ(verify_body("done", loaded)["ok"], Value(false)) << left;
    EXPECT_EQ(verify_body("done", loaded, {}).text("head"), "truncated") << left;
    // Without the signature this cannot be detected.
    loaded.signed_head.reset();
    EXPECT_EQ(verify_body("done", loaded).text("head"), "unsigned") << left;
    EXPECT_EQ(verify_body("done", loaded)["ok"], Value(true))
        << left << first_failed_proof(verify_body("done", loaded));
  }
}

AE_TEST("tamper/a signed head is accepted only with a valid signature of a known key") {
  const StoredJobs stored(Durability::fused);
  const Value no_key = verify_body("done", stored.done, {});
  EXPECT_EQ(no_key.text("head"), "unknown_key");
  EXPECT_EQ(no_key["ok"], Value(true));
  EXPECT_EQ(no_key["signature"].text("key_id"), signing_key().public_key().id());
  const SigningKey other = SigningKey::from_seed({8});
  const Value by_other = verify_body("done", stored.done, {other.public_key()});
  EXPECT_EQ(by_other.text("head"), "unknown_key");
  EXPECT_EQ(by_other["ok"], Value(false));
  EXPECT_EQ(verify_body("done", stored.done, {other.public_key(), keys()[0]}).text("head"),
            "intact");
  // A forged signed head.
  store::LoadedJob loaded = stored.done;
  loaded.signed_head = R"({"count":3,"hash":")" + std::string(64, 'a') +
                       R"(","job":"done","key_id":")" + signing_key().public_key().id() +
                       R"(","signature":")" + std::string(128, 'a') +
                       R"(","time":"2026-01-01T00:00:00.000000Z","v":1})";
  EXPECT_EQ(verify_body("done", loaded).text("head"), "altered");
}

// ---------------------------------------------------------------- SQLite file

class TamperedFolder {
 public:
  TamperedFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "aetheris-tamper-XXXXXX";
    AE_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~TamperedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TamperedFolder(const TamperedFolder&) = delete;
  TamperedFolder& operator=(const TamperedFolder&) = delete;
  std::string store() const { return path_ + "/store.db"; }

 private:
  std::string path_;
};

class Edit {
 public:
  explicit Edit(const std::string& path) {
    AE_CHECK(sqlite3_open(path.c_str(), &db_) == SQLITE_OK, path);
  }
  ~Edit() { sqlite3_close(db_); }
  Edit(const Edit&) = delete;
  Edit& operator=(const Edit&) = delete;

  struct Cell {
    std::string row;  // identifies the row while no column of it changes
    std::string bytes;
    bool is_blob;
  };
  std::vector<Cell> cells(const std::string& table, const std::string& column) {
    std::vector<Cell> cells;
    sqlite3_stmt* s = prepare(fmt::format("SELECT {}, {} FROM {}", row_of(table), column, table));
    while (sqlite3_step(s) == SQLITE_ROW) {
      const void* bytes = sqlite3_column_blob(s, 1);
      if (bytes == nullptr) continue;
      cells.push_back(
          {text(s, 0),
           {static_cast<const char*>(bytes), static_cast<std::size_t>(sqlite3_column_bytes(s, 1))},
           sqlite3_column_type(s, 1) == SQLITE_BLOB});
    }
    sqlite3_finalize(s);
    return cells;
  }
  void change(const std::string& table, const std::string& column, const Cell& cell,
              const std::string& now) {
    sqlite3_stmt* s =
        prepare(fmt::format("UPDATE {} SET {} = ?1 WHERE {} = ?2", table, column, row_of(table)));
    bind(s, 1, now, cell.is_blob);
    bind(s, 2, cell.row, false);
    finish(s, fmt::format("{}.{}", table, column));
  }
  // No other row has the changed value.
  void restore(const std::string& table, const std::string& column, const Cell& cell,
               const std::string& now) {
    sqlite3_stmt* s = prepare(fmt::format("UPDATE {0} SET {1} = ?1 WHERE {1} = ?2", table, column));
    bind(s, 1, cell.bytes, cell.is_blob);
    bind(s, 2, now, cell.is_blob);
    finish(s, fmt::format("{}.{}", table, column));
  }
  // False: the column is unique.
  bool try_change(const std::string& table, const std::string& column, const Cell& cell,
                  const std::string& now) {
    sqlite3_stmt* s =
        prepare(fmt::format("UPDATE {} SET {} = ?1 WHERE {} = ?2", table, column, row_of(table)));
    bind(s, 1, now, false);
    bind(s, 2, cell.row, false);
    const int done = sqlite3_step(s);
    sqlite3_finalize(s);
    AE_CHECK(done == SQLITE_DONE || done == SQLITE_CONSTRAINT, table + sqlite3_errmsg(db_));
    return done == SQLITE_DONE;
  }
  // Works also if the column identifies its row.
  void restore_row(const std::string& table, const std::string& column, const Cell& cell,
                   const std::string& now) {
    const bool names = table != "commits" && table != "inbox" && column == "job";
    AE_CHECK(try_change(table, column, {names ? now : cell.row, {}, false}, cell.bytes), table);
  }
  void run(const std::string& sql) {
    AE_CHECK(sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK,
             sqlite3_errmsg(db_));
  }

 private:
  static std::string row_of(const std::string& table) {
    if (table == "effects" || table == "ledger") return "job || '/' || invocation || '/' || try";
    if (table == "labels") return "job || '/' || number";
    if (table == "blobs") return "hex(hash)";
    return "CAST(rowid AS TEXT)";
  }
  static std::string text(sqlite3_stmt* s, int column) {
    return reinterpret_cast<const char*>(sqlite3_column_text(s, column));
  }
  void finish(sqlite3_stmt* s, const std::string& what) {
    AE_CHECK(sqlite3_step(s) == SQLITE_DONE, what + sqlite3_errmsg(db_));
    AE_CHECK(sqlite3_changes(db_) == 1, what);
    sqlite3_finalize(s);
  }
  sqlite3_stmt* prepare(const std::string& sql) {
    sqlite3_stmt* s = nullptr;
    AE_CHECK(sqlite3_prepare_v2(db_, sql.c_str(), -1, &s, nullptr) == SQLITE_OK,
             fmt::format("{}: {}", sql, sqlite3_errmsg(db_)));
    return s;
  }
  static void bind(sqlite3_stmt* s, int at, const std::string& bytes, bool blob) {
    const int size = static_cast<int>(bytes.size());
    if (blob) {
      sqlite3_bind_blob(s, at, bytes.data(), size, SQLITE_TRANSIENT);
    } else {
      sqlite3_bind_text(s, at, bytes.data(), size, SQLITE_TRANSIENT);
    }
  }
  sqlite3* db_ = nullptr;
};

// A SQLite file with both jobs, and a reader that verifies them.
class StoreFile {
 public:
  explicit StoreFile(Durability durability) {
    {
      TestLoop loop;  // results after its end are dropped
      auto store = store::SqliteStore::open({.path = folder_.store(), .loop = loop, .clock = loop});
      AE_CHECK(store.has_value());
      JobMaker job_maker(loop, **store, durability);
      job_maker.make_all();
    }
    auto reader = store::SqliteStore::open(
        {.path = folder_.store(), .loop = loop_, .clock = loop_, .read_only = true});
    AE_CHECK(reader.has_value());
    reader_ = *std::move(reader);
  }
  std::string path() const { return folder_.store(); }
  Result<store::LoadedJob> load(const char* job) {
    return loop_.await<Result<store::LoadedJob>>(
        [&](auto done) { reader_->load(JobId(job), 1, std::move(done)); });
  }
  // The problems; "" if there are none.
  std::string problems() {
    std::string problems;
    for (const char* job : {"done", "held"}) {
      const auto loaded = load(job);
      problems += loaded ? first_failed_proof(verify_body(job, *loaded)) : loaded.error().message;
    }
    return problems;
  }
  // All data that proofs and views are computed from.
  std::string logs() {
    std::string all;
    for (const char* job : {"done", "held"}) {
      const auto loaded = load(job);
      if (!loaded) return loaded.error().message;
      for (const std::string& commit : loaded->commits) all += commit + "\n";
      for (const Blob& blob : loaded->blobs) all += blob.bytes + "\n";
      for (const store::EffectRow& row : loaded->effects) all += row.record + "\n";
      for (const store::LedgerRow& row : loaded->ledger) all += row.record + "\n";
      for (const store::InboxEntry& entry : loaded->inbox) all += entry.request + "\n";
    }
    return all;
  }

 private:
  const TamperedFolder folder_;
  TestLoop loop_;
  std::unique_ptr<store::SqliteStore> reader_;
};

void check_every_byte_of_file(Durability durability) {
  StoreFile file(durability);
  const auto all = [&] { return file.problems(); };
  ASSERT_EQ(all(), "");
  Edit edit(file.path());
  edit.run("PRAGMA synchronous = OFF");
  struct Column {
    const char *table, *column;
  };
  std::size_t bytes = 0;
  for (const Column& c :
       std::initializer_list<Column>{{"commits", "body"},      {"commits", "blobs"},
                                     {"blobs", "bytes"},       {"blobs", "hash"},
                                     {"effects", "record"},    {"effects", "invocation"},
                                     {"ledger", "record"},     {"ledger", "invocation"},
                                     {"ledger", "state"},      {"inbox", "act"},
                                     {"inbox", "id"},          {"heads", "head"},
                                     {"signed_heads", "body"}, {"jobs", "job_id"},
                                     {"jobs", "agent"},        {"jobs", "idempotency_key"},
                                     {"jobs", "status"},       {"jobs", "request_hash"},
                                     {"labels", "key"},        {"labels", "value"}}) {
    for (const Edit::Cell& cell : edit.cells(c.table, c.column)) {
      for (std::size_t at = 0; at < cell.bytes.size(); ++at) {
        std::string now = cell.bytes;
        now[at] = flip_bit(now[at]);
        edit.change(c.table, c.column, cell, now);
        EXPECT_NE(all(), "") << c.table << "." << c.column << " byte " << at;
        edit.restore(c.table, c.column, cell, now);
        bytes++;
      }
    }
  }
  EXPECT_EQ(all(), "");
  EXPECT_GT(bytes, 4000u);
}

AE_TEST_SLOW("tamper/a change of any byte of a fused job in a SQLite file is detected") {
  check_every_byte_of_file(Durability::fused);
}
AE_TEST_SLOW("tamper/a change of any byte of a split job in a SQLite file is detected") {
  check_every_byte_of_file(Durability::split);
}

// Numbers that identify and order rows. Each digit is changed, and the whole number is set to point
// nowhere, forwards or to itself: verify terminates, and reports an error or shows the same log.
AE_TEST_SLOW("tamper/a changed number that locates rows in a SQLite file is detected or harmless") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    StoreFile file(durability);
    ASSERT_EQ(file.problems(), "");
    const std::string logs = file.logs();
    Edit edit(file.path());
    edit.run("PRAGMA synchronous = OFF");
    struct Column {
      const char *table, *column;
    };
    std::size_t found = 0, harmless = 0;
    for (const Column& c :
         {Column{"commits", "prev"}, Column{"commits", "jump"}, Column{"commits", "first_seq"},
          Column{"commits", "last_seq"}, Column{"commits", "job"}, Column{"heads", "last_commit"},
          Column{"heads", "last_seq"}, Column{"heads", "commits"}, Column{"heads", "job"},
          Column{"signed_heads", "job"}, Column{"inbox", "job"}}) {
      for (const Edit::Cell& cell : edit.cells(c.table, c.column)) {
        std::vector<std::string> values = {"0", "-1", "9223372036854775807", cell.row,
                                           std::to_string(std::stoll(cell.row) + 1)};
        for (std::size_t at = 0; at < cell.bytes.size(); ++at) {
          values.push_back(cell.bytes);
          values.back()[at] = flip_bit(values.back()[at]);
        }
        for (const std::string& value : values) {
          if (value == cell.bytes || !edit.try_change(c.table, c.column, cell, value)) continue;
          const std::string name = fmt::format("{}.{} of {}", c.table, c.column, cell.row);
          if (!file.problems().empty()) {
            found++;
          } else {
            // A signature or inbox entry of an unknown job counts as removed (docs/verify.md).
            const bool counts_as_removed =
                c.table != std::string_view("commits") && c.table != std::string_view("heads");
            EXPECT_TRUE(counts_as_removed || file.logs() == logs) << name << " = " << value;
            harmless++;
          }
          edit.restore_row(c.table, c.column, cell, value);
        }
      }
    }
    EXPECT_EQ(file.problems(), "");
    EXPECT_EQ(file.logs(), logs);
    EXPECT_GT(found, 100u);
    EXPECT_GT(harmless, 20u);
  }
}

}  // namespace
}  // namespace ae::app

// The PostgreSQL driver: the conformance suite, commits and closing.
#include <fmt/core.h>

#include <algorithm>

#include "store/conformance_test.h"
#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

class PostgresDriver final : public conformance::StoreDriver {
 public:
  explicit PostgresDriver(testing::TestLoop& loop) : loop_(loop) { restart(); }
  Store& store() override { return *store_; }
  void restart() override { open({}); }
  Store* fair_by(const std::string& label) override {
    open(label);
    return store_.get();
  }

 private:
  void open(std::optional<std::string> fair_by) {
    store_.reset();
    auto opened = PostgresStore::open({.url = server().url(),
                                       .loop = loop_,
                                       .schema = schema_.name(),
                                       .fair_by = std::move(fair_by),
                                       .clock = &loop_});
    AE_CHECK(opened.has_value(), opened.error().message);
    store_ = *std::move(opened);
  }

  testing::TestLoop& loop_;
  OwnSchema schema_;
  std::unique_ptr<PostgresStore> store_;
};

[[maybe_unused]] const bool registered = conformance::register_conformance(
    "store_postgres",
    [](testing::TestLoop& loop) { return std::make_unique<PostgresDriver>(loop); });

AE_TEST("postgres/query plans can be renewed before any call") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  options.plan_max_age = std::chrono::milliseconds(0);
  ASSERT_TRUE(fixture.open(options));
  for (const std::string id : {"j0", "j1", "j2"}) {
    ASSERT_TRUE(fixture.commit(PostgresFixture::create(id)));
    ASSERT_EQ(fixture.claim(1)->size(), 1u);
    ASSERT_TRUE(fixture.commit(PostgresFixture::append(id, 2, conformance::fence("B0", 1))));
    EXPECT_EQ(fixture.load(id)->commits.size(), 2u);
    EXPECT_FALSE(fixture.query()->empty());
  }
}

AE_TEST("postgres/a new fairness label changes no ended job") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  for (const char* status : {"queued", "waiting", "completed", "failed", "cancelled"}) {
    Batch job = PostgresFixture::create(status, {.labels = {{"tenant", "red"}}});
    job.row.status = status;
    ASSERT_TRUE(fixture.commit(job));
  }
  const auto rows = [&] {
    return sql("SELECT status, turn, ctid::text FROM heads ORDER BY status", schema.name());
  };
  const auto before = rows();
  PostgresOptions options = fixture.options();
  options.fair_by = "tenant";
  ASSERT_TRUE(fixture.open(options));
  const auto after = rows();
  ASSERT_EQ(after[1].size(), 5);
  for (int i = 0; i < 5; ++i) {
    const std::string status = after[1].text(i, 0);
    const bool is_unended = status == "queued" || status == "waiting";
    EXPECT_EQ(after[1].text(i, 1), is_unended ? "red" : "") << status;
    EXPECT_EQ(after[1].text(i, 2) != before[1].text(i, 2), is_unended) << status;
  }
}

AE_TEST("postgres/concurrent commits are grouped into few transactions") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  int pending = 1000;
  for (int i = 0; i < 1000; ++i) {
    fixture.store().commit(PostgresFixture::create(fmt::format("j{}", i)),
                           [&](Result<CommitResult> answer) {
                             EXPECT_TRUE(answer);
                             --pending;
                           });
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return pending == 0; }));
  EXPECT_EQ(fixture.store().stats().writes, 1000u);
  EXPECT_LT(fixture.store().stats().groups, 100u);
}

AE_TEST("postgres/a large batch and a long log are stored and loaded unchanged") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch b = PostgresFixture::create_claimed("j0");
  b.sealed->bytes.append(3u << 20, 'x');
  b.sealed->blobs.push_back({sha256("big"), std::string(16u << 20, 'b')});
  ASSERT_TRUE(fixture.commit(b));
  for (std::uint64_t seq = 2; seq < 8; ++seq) {
    Batch more = PostgresFixture::append("j0", seq);
    more.sealed->bytes.append(1u << 20, 'y');
    ASSERT_TRUE(fixture.commit(more));
    EXPECT_TRUE(fixture.commit(more)->is_duplicate);
  }
  const auto loaded = fixture.load("j0");
  ASSERT_EQ(loaded->commits.size(), 7u);
  EXPECT_EQ(loaded->commits[0], b.sealed->bytes);
  EXPECT_EQ(loaded->blobs.at(0).bytes.size(), 16u << 20);
}

AE_TEST("postgres/text that cannot be stored is refused without affecting other commits") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch bad =
      PostgresFixture::create("j0", {.agent = "a", .labels = {{"k", std::string("a\0b", 3)}}});
  EXPECT_EQ(fixture.commit(bad).error().code, Code::input_invalid);
  // A batch that only the server can refuse is refused alone.
  Batch worse = PostgresFixture::create("j1", {.agent = "a", .labels = {{"k", "\xff"}}});
  std::string answers;
  for (Batch batch : {PostgresFixture::create("j2"), worse, PostgresFixture::create("j3")}) {
    fixture.store().commit(std::move(batch), [&](Result<CommitResult> answer) {
      answers += conformance::show(answer) + ";";
    });
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return std::ranges::count(answers, ';') == 3; }));
  EXPECT_EQ(answers, "seq 2;unavailable;seq 2;");
}

AE_TEST("postgres/a read-only store reads the commits of others and refuses writes") {
  const OwnSchema schema;
  PostgresFixture owner(schema.name()), reader(schema.name() + "x");
  PostgresOptions reading = reader.options();
  reading.read_only = true;
  EXPECT_EQ(reader.open(reading).error().code, Code::not_found) << "and creates no tables";
  EXPECT_EQ(reader.open(reading).error().code, Code::not_found);
  reading.schema = schema.name();
  ASSERT_TRUE(owner.open());
  ASSERT_TRUE(owner.commit(PostgresFixture::create_claimed("j0")));
  ASSERT_TRUE(reader.open(reading));
  EXPECT_EQ(reader.load("j0")->row.claim, conformance::fence("A", 1));
  EXPECT_EQ(reader.commit(PostgresFixture::append("j0", 2)).error().code, Code::unavailable);
  ASSERT_TRUE(owner.commit(PostgresFixture::append("j0", 2)));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3u);
}

AE_TEST("postgres/calls made before the store closes are answered") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    fixture.store().commit(
        PostgresFixture::create(fmt::format("j{}", i)),
        [&](Result<CommitResult> answer) { answers += answer.has_value() ? 1 : 0; });
  }
  fixture.close();
  fixture.loop.run_ready();
  EXPECT_EQ(answers, 100);
}

AE_TEST("postgres/a worker's announcement is visible to others until it expires") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), other(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(other.open());
  const auto announcement_of = [&](const std::string& worker) -> std::string {
    const auto job_stats = other.loop.await<Result<JobStats>>(
        [&](auto done) { other.store().count_jobs(std::move(done)); });
    EXPECT_TRUE(job_stats);
    const auto found = job_stats->workers.find(worker);
    return found == job_stats->workers.end() ? "-" : found->second.announcement;
  };
  // Queries of one store are answered in order.
  const auto settled = [&] {
    EXPECT_TRUE(one.loop.await<Result<JobStats>>(
        [&](auto done) { one.store().count_jobs(std::move(done)); }));
  };
  one.store().announce("w1", "{\"n\":1}", std::chrono::hours(1));
  settled();
  EXPECT_EQ(announcement_of("w1"), "{\"n\":1}");
  one.store().announce("w1", "{\"n\":2}", std::chrono::hours(1));
  one.store().announce("w2", "late", Duration(0));
  settled();
  EXPECT_EQ(announcement_of("w1"), "{\"n\":2}");
  EXPECT_EQ(announcement_of("w2"), "-");
  one.store().announce("w1", "{}", Duration(0));
  settled();
  EXPECT_EQ(announcement_of("w1"), "-");
}

}  // namespace
}  // namespace ae::store

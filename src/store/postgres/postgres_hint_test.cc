// Hints: what the processes of one store announce to each other.
#include "store/postgres/hints.h"

#include <fmt/core.h>

#include <set>

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

AE_TEST("hint/other processes' claimable jobs and inbox entries are announced, own ones are not") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  std::vector<std::string> hints[2];
  const auto listen = [](PostgresFixture& fixture, std::vector<std::string>& into) {
    fixture.store().on_hint([&into](const Hint& hint) {
      into.push_back(hint.inbox_of ? hint.inbox_of->text.string()
                     : hint.needs  ? "claim for " + hint.needs->agent
                                   : "claim");
    });
  };
  listen(one, hints[0]);
  listen(two, hints[1]);
  ASSERT_TRUE(one.commit(PostgresFixture::create_claimed("held")));
  ASSERT_TRUE(one.commit(PostgresFixture::append("held", 2)));  // no hint
  ASSERT_TRUE(one.commit(PostgresFixture::create("free")));
  ASSERT_TRUE(two.loop.run_until([&] { return !hints[1].empty(); }));
  EXPECT_EQ(hints[1], std::vector<std::string>{"claim for a"});
  const auto put_result = two.loop.await<Result<void>>([&](auto done) {
    two.store().put_inbox(JobId("held"), {.id = "s", .request = "{}"}, std::move(done));
  });
  ASSERT_TRUE(put_result);
  ASSERT_TRUE(one.loop.run_until([&] { return !hints[0].empty(); }));
  EXPECT_EQ(hints[0], std::vector<std::string>{"held"});
  EXPECT_EQ(hints[1].size(), 1u);
}

AE_TEST("hint/a claimable job is announced with its requirements in bounded texts") {
  using postgres::parse_hint;
  postgres::HintBatch hints;
  EXPECT_TRUE(hints.empty());
  hints.add_claimable("a\nb", {"gpu", "\"eu\""});
  hints.add_claimable("a\nb", {"gpu", "\"eu\""});
  hints.add_inbox(JobId("j"));
  ASSERT_EQ(hints.texts().size(), 2U);
  const Hint claim = parse_hint(hints.texts()[0]);
  ASSERT_TRUE(claim.needs && !claim.inbox_of);
  EXPECT_EQ(claim.needs->agent, "a\nb");
  EXPECT_EQ(claim.needs->capabilities, (std::vector<std::string>{"gpu", "\"eu\""}));
  EXPECT_EQ(parse_hint(hints.texts()[1]).inbox_of, JobId("j"));
  hints.add_claimable("a", std::vector<std::string>(64, std::string(64, 'x')));
  hints.add_claimable("another", {});
  EXPECT_EQ(hints.texts(), (std::vector<std::string>{"claim", "inbox j"})) << "too long for a hint";
  postgres::HintBatch many;
  for (std::size_t i = 0; i <= postgres::kHintKinds; ++i) {
    many.add_claimable(fmt::format("agent{}", i), {});
  }
  EXPECT_EQ(many.texts(), std::vector<std::string>{"claim"});
  for (const char* text : {"claim", "claim ", "claim {", "claim 1", "claim {\"agent\":1}",
                           "claim {\"agent\":\"a\",\"capabilities\":[1]}", "something else"}) {
    EXPECT_FALSE(parse_hint(text).needs || parse_hint(text).inbox_of) << text;
  }
}

AE_TEST("hint/a job that ends or waits is announced to others, a step of a running one is not") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  std::vector<std::string> hints[2];
  const auto listen = [](PostgresFixture& fixture, std::vector<std::string>& into) {
    fixture.store().on_hint([&into](const Hint& hint) {
      for (const JobId& job : hint.idle) into.push_back(job.text);
      if (hint.idle.empty()) into.push_back("else");
    });
  };
  listen(one, hints[0]);
  listen(two, hints[1]);
  for (const char* id : {"ends", "waits", "goes on"}) {
    ASSERT_TRUE(one.commit(PostgresFixture::create_claimed(id)));
  }
  const std::pair<const char*, const char*> ways[] = {
      {"goes on", "running"}, {"ends", "completed"}, {"waits", "waiting"}};
  for (const auto& [id, status] : ways) {
    Batch batch = PostgresFixture::append(id, 2);
    batch.row.status = status;
    batch.release = batch.row.status != "running";
    ASSERT_TRUE(one.commit(std::move(batch)));
  }
  one.loop.advance(std::chrono::milliseconds(100));
  ASSERT_TRUE(two.loop.run_until([&] { return hints[1].size() >= 2; }));
  EXPECT_EQ(hints[1], (std::vector<std::string>{"ends", "waits"}));
  one.loop.run_ready();
  EXPECT_EQ(hints[0], std::vector<std::string>{}) << "its own jobs are not announced to it";
}

AE_TEST("hint/any number of idle jobs is announced in bounded texts") {
  std::set<JobId> jobs;
  for (int i = 0; i < 300; ++i) jobs.emplace(fmt::format("job-{}", i));
  const auto texts = postgres::idle_texts(jobs);
  EXPECT_GT(texts.size(), 1u);
  std::set<JobId> read;
  for (const std::string& text : texts) {
    EXPECT_LE(text.size(), postgres::kHintBytes);
    for (const JobId& job : postgres::parse_hint(text).idle) read.insert(job);
  }
  EXPECT_EQ(read, jobs);
}

AE_TEST("hint/idle jobs that an older version announces are read") {
  EXPECT_EQ(postgres::parse_hint("rested a b").idle, (std::vector<JobId>{JobId("a"), JobId("b")}));
  EXPECT_EQ(postgres::parse_hint("rested").idle, std::vector<JobId>{});
}

AE_TEST("hint/a listener that lost its connection reconnects and reports a hint at once") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  int hint_count = 0;
  one.store().on_hint([&](const Hint&) { ++hint_count; });
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
  ASSERT_TRUE(one.loop.run_until([&] { return hint_count == 1; })) << "hints may have been missed";
  ASSERT_TRUE(two.commit(PostgresFixture::create("j0")));
  ASSERT_TRUE(one.loop.run_until([&] { return hint_count == 2; }));
}

}  // namespace
}  // namespace ae::store

// Tests of prune: what it selects, archives and deletes, and what remains when the store or the
// archive fails.
#include "runtime/service/prune.h"

#include <fmt/core.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "json/json.h"
#include "log/event.h"
#include "log/seal.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::runtime {
namespace {

// Keeps files like a folder.
class MemoryArchive final : public Archive {
 public:
  explicit MemoryArchive(async::Loop& loop) : loop_(loop) {}
  void put_files(std::vector<File> files, async::Done<Status> done) override {
    Status kept = full ? fail(Code::unavailable, "the shelf is full") : Status();
    for (File& file : files) {
      if (!kept) break;
      const auto [it, fresh] = files_.emplace(file.name, file.bytes);
      if (!fresh && it->second != file.bytes) kept = fail(Code::already_exists, file.name);
    }
    loop_.post([done = std::move(done), kept]() mutable { done(kept); });
  }
  std::map<std::string, std::string> files_;
  bool full = false;

 private:
  async::Loop& loop_;
};

struct PruneFixture {
  testing::TestLoop loop;
  store::MemoryDisk disk;
  store::MemoryStore memory{loop, loop, disk};
  std::shared_ptr<MemoryArchive> archive = std::make_shared<MemoryArchive>(loop);
  std::uint64_t next_id = 0;

  // A job of two narrative events whose row has an ended status.
  void job(const std::string& id, const std::string& status = "completed") {
    store::Batch batch{.job = JobId(id),
                       .authority = store::Batch::Create{store::NewJob{.agent = "a"}}};
    std::vector<EventBody> drafts;
    drafts.push_back(JobCreated{.agent = "a", .execution_version = "1", .input = Value(id)});
    const Hash nothing{};
    ++next_id;
    auto sealed = seal({.job = batch.job,
                        .first_seq = 1,
                        .prev_hash = nothing,
                        .first_id = uuid_v7(next_id, next_id, next_id),
                        .created_at = loop.now(),
                        .attempt_id = std::nullopt,
                        .salt_seed_a = next_id,
                        .salt_seed_b = next_id},
                       drafts);
    ASSERT_TRUE(sealed) << sealed.error().message;
    batch.sealed = *std::move(sealed);
    batch.row.status = status;
    ASSERT_TRUE(loop.await<Result<store::CommitResult>>(
        [&](auto done) { memory.commit(std::move(batch), std::move(done)); }));
  }
  Result<PruneResult> prune(store::Store& store, PruneRequest request) {
    return loop.await<Result<PruneResult>>(
        [&](auto done) { runtime::prune(store, std::move(request), {}, std::move(done)); });
  }
  std::string remaining() {
    const auto rows = loop.await<Result<std::vector<store::JobRow>>>(
        [&](auto done) { memory.query({.limit = 1000}, std::move(done)); });
    std::string text;
    for (const store::JobRow& row : *rows) text += row.id.text + " ";
    return text;
  }
};

AE_TEST("prune/jobs are deleted by age, each after its log is archived") {
  PruneFixture fixture;
  for (int i = 0; i < 150; ++i)
    fixture.job(fmt::format("j{}", i), i % 50 == 0 ? "waiting" : "failed");
  fixture.loop.advance(std::chrono::hours(2));
  fixture.job("young");
  const auto dry =
      fixture.prune(fixture.memory, {.older_than = std::chrono::hours(1), .dry_run = true});
  ASSERT_TRUE(dry);
  EXPECT_EQ(dry->jobs, 147u);
  EXPECT_EQ(fixture.archive->files_.size(), 0u);
  PruneRequest request{
      .older_than = std::chrono::hours(1), .archive = fixture.archive, .jobs_max = 100};
  auto done = fixture.prune(fixture.memory, request);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->jobs, 100u);
  ASSERT_TRUE(done->next.has_value()) << "there are more";
  request.after = *done->next;
  done = fixture.prune(fixture.memory, request);
  EXPECT_EQ(done->jobs, 47u);
  EXPECT_FALSE(done->next.has_value());
  EXPECT_EQ(fixture.remaining(), "young j100 j50 j0 ");
  EXPECT_EQ(fixture.archive->files_.size(), 147u);
  const auto file = parse_json(fixture.archive->files_.at("j7.json"));
  EXPECT_EQ((*file)["events"].items()[0]["payload"].text("input"), "j7");
}

AE_TEST("prune/a job that cannot be archived is not deleted") {
  PruneFixture fixture;
  fixture.job("a");
  fixture.job("b");
  fixture.loop.advance(std::chrono::hours(2));
  fixture.archive->files_["a.json"] = "something else";
  const PruneRequest request{.older_than = std::chrono::hours(1), .archive = fixture.archive};
  EXPECT_EQ(fixture.prune(fixture.memory, request).error().code, Code::already_exists);
  fixture.archive->files_.clear();
  fixture.archive->full = true;
  EXPECT_EQ(fixture.prune(fixture.memory, request).error().code, Code::unavailable);
  EXPECT_EQ(fixture.remaining(), "b a ");
  fixture.archive->full = false;
  EXPECT_EQ(fixture.prune(fixture.memory, request)->jobs, 2u);
}

AE_TEST_SLOW("prune/after any failed or lost call a second run deletes and archives the rest") {
  for (const store::Fault fault : {store::Fault::fail_before, store::Fault::fail_after}) {
    bool failed = true;
    for (std::uint64_t n = 1; failed; ++n) {
      ASSERT_LT(n, 500u);
      PruneFixture fixture;
      for (int i = 0; i < 70; ++i) fixture.job(fmt::format("j{}", i));
      fixture.job("w", "waiting");
      fixture.loop.advance(std::chrono::hours(2));
      store::FaultyStore faulty(fixture.loop, fixture.memory,
                                {.script = store::inject_at(n, fault), .on_crash = {}});
      const PruneRequest request{.older_than = std::chrono::hours(1), .archive = fixture.archive};
      const auto first = fixture.prune(faulty, request);
      failed = !first;
      if (failed) {
        EXPECT_TRUE(first.error().code == Code::unavailable ||
                    first.error().code == Code::unknown_outcome)
            << first.error().message;
        ASSERT_TRUE(fixture.prune(faulty, request));
      }
      EXPECT_EQ(fixture.remaining(), "w ");
      EXPECT_EQ(fixture.archive->files_.size(), 70u);
    }
  }
}

AE_TEST("prune/two concurrent runs delete each job once, and both finish") {
  PruneFixture fixture;
  for (int i = 0; i < 300; ++i) fixture.job(fmt::format("j{}", i));
  fixture.loop.advance(std::chrono::hours(2));
  std::vector<Result<PruneResult>> results;
  for (int i = 0; i < 2; ++i) {
    runtime::prune(fixture.memory,
                   {.older_than = std::chrono::hours(1), .archive = fixture.archive}, {},
                   [&](Result<PruneResult> pruned) { results.push_back(std::move(pruned)); });
  }
  fixture.loop.run_until([&] { return results.size() == 2; });
  ASSERT_TRUE(results[0] && results[1]);
  EXPECT_EQ(results[0]->jobs + results[1]->jobs, 300u);
  EXPECT_EQ(fixture.remaining(), "");
}

AE_TEST("prune/a job with an unreadable log is skipped and listed if it is to be archived") {
  PruneFixture fixture;
  fixture.job("good");
  store::Batch broken{.job = JobId("broken"),
                      .authority = store::Batch::Create{store::NewJob{.agent = "a"}}};
  broken.sealed = SealedBatch{};
  broken.sealed->first_seq = broken.sealed->last_seq = 1;
  broken.sealed->bytes = "no commit";
  broken.sealed->created_at = fixture.loop.now();
  broken.row.status = "completed";
  ASSERT_TRUE(fixture.loop.await<Result<store::CommitResult>>(
      [&](auto done) { fixture.memory.commit(std::move(broken), std::move(done)); }));
  fixture.loop.advance(std::chrono::hours(2));
  PruneRequest request{.older_than = std::chrono::hours(1), .archive = fixture.archive};
  const auto done = fixture.prune(fixture.memory, request);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->jobs, 1u);
  ASSERT_EQ(done->skipped.size(), 1u);
  EXPECT_EQ(done->skipped[0].first.text, "broken");
  request.archive = nullptr;
  EXPECT_EQ(fixture.prune(fixture.memory, request)->jobs, 1u) << "deletion does not read the log";
}

}  // namespace
}  // namespace ae::runtime

// Tests of open with damaged batches and blobs: every change is detected, and none causes a crash.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "json/json.h"
#include "log/seal.h"
#include "log/seal_fixture_test.h"
#include "log/sealed_form.h"
#include "testing/test.h"

namespace ae::testing {
namespace {

AE_TEST("log/seal/a missing or altered message is detected") {
  Log log;
  log.add({model_call({message(std::string(99, 'a'))})});
  std::string& blob = log.blobs.begin()->second;
  blob[20] = 'b';
  EXPECT_TRUE(refusal(log.open_first()).starts_with("log_corrupt: event 1: the value kept apart"))
      << refusal(log.open_first());
  log.blobs.clear();
  EXPECT_EQ(refusal(log.open_first()), "log_corrupt: event 1: no such blob");
}

AE_TEST("log/seal/a missing, altered or truncated blob is reported with its event number") {
  Log log;
  log.add({JobCancelled{.by = "ann"}, JobCompleted{.result = Value(std::string(300, 'x'))}}, {},
          {.value_inline_max = 8});
  std::string& blob = log.blobs.begin()->second;
  const std::string original = blob;
  ASSERT_TRUE(log.open_first());
  blob[7] = 'y';
  EXPECT_TRUE(refusal(log.open_first()).starts_with("log_corrupt: event 2: "))
      << refusal(log.open_first());
  blob = original.substr(1);
  EXPECT_FALSE(log.open_first());
  log.blobs.clear();
  EXPECT_EQ(refusal(log.open_first()), "log_corrupt: event 2: no such blob");
}

AE_TEST("log/seal/a known value is reused, but its bytes are still verified") {
  Log log;
  const Value graph = json(R"({"nodes":[{"id":"a"},{"id":"b"}],"schema":1})");
  const std::vector<EventBody> drafts = {
      PlanGenerated{.decision_id = DecisionId("0123456789abcdef"),
                    .decision_locked = true,
                    .plan_hash = *hash_from_hex(kDigest),
                    .plan_input_hash = *hash_from_hex(kDigest),
                    .planned_by = "file",
                    .planner_version = "1",
                    .schema_version = 1,
                    .task_graph = graph}};
  log.add(drafts, {}, {.json_inline_max = 8});
  ASSERT_EQ(log.blobs.size(), 1u);
  int requests = 0;
  const ValueLookup known = [&](const Hash& hash) {
    ++requests;
    return hash == sha256(canonical(graph)) ? &graph : nullptr;
  };
  const auto opened = open(kJob, log.batches[0], Hash{}, log.source(), known);
  ASSERT_TRUE(opened) << refusal(opened);
  EXPECT_EQ(requests, 1);
  EXPECT_EQ(log_text(opened->events), log_text(log.events));
  EXPECT_EQ(log_text(opened->events), log_text(log.open_first()->events));
  const ValueLookup nothing = [](const Hash&) -> const Value* { return nullptr; };
  EXPECT_TRUE(open(kJob, log.batches[0], Hash{}, log.source(), nothing));
  log.blobs.begin()->second[2] = 'N';
  EXPECT_TRUE(refusal(open(kJob, log.batches[0], Hash{}, log.source(), known))
                  .starts_with("log_corrupt: event 1: "));
  EXPECT_EQ(requests, 1) << "no lookup after the hash check fails";
}

AE_TEST("log/seal/an unavailable blob store is not reported as log_corrupt") {
  Log log;
  log.add({JobCompleted{.result = Value(std::string(300, 'x'))}}, {}, {.value_inline_max = 8});
  const BlobSource down = [](const Hash&) -> Result<std::string> {
    return fail(Code::unavailable, "no connection");
  };
  EXPECT_EQ(open(kJob, log.batches[0], Hash{}, down).error().code, Code::unavailable);
}

// Flips one bit of every byte of a batch (a different one for each byte), or each of the eight.
void expect_flips_detected(bool each_bit) {
  Log log;
  std::vector<EventBody> drafts = one_step();
  drafts.push_back(model_call({message(std::string(70, 'a')), message("b")}));
  log.add(drafts, kAttempt, {.value_inline_max = 20, .json_inline_max = 20});
  ASSERT_FALSE(log.blobs.empty());
  const std::string original = log.batches[0];
  for (std::size_t i = 0; i < original.size(); ++i) {
    for (std::size_t bit = 0; bit < 8; ++bit) {
      if (!each_bit && bit != i % 8) continue;
      std::string& bytes = log.batches[0] = original;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      ASSERT_FALSE(log.open_first()) << "byte " << i << ", bit " << bit;
    }
  }
  log.batches[0] = original;
  for (auto& [hash, blob] : log.blobs) {
    for (char& c : blob) {
      c = static_cast<char>(c ^ 1);
      ASSERT_FALSE(log.open_first());
      c = static_cast<char>(c ^ 1);
    }
  }
  EXPECT_TRUE(log.open_first());
}

AE_TEST("log/seal/every flipped byte of a sealed batch or a blob is detected") {
  expect_flips_detected(false);
}

AE_TEST_SLOW("log/seal/every flipped bit of a sealed batch is detected") {
  expect_flips_detected(true);
}

AE_TEST("log/seal/a batch that is truncated or has trailing bytes is rejected") {
  Log log;
  log.add(one_step(), kAttempt);
  const std::string original = log.batches[0];
  for (std::size_t size = 0; size < original.size(); ++size) {
    log.batches[0] = original.substr(0, size);
    ASSERT_FALSE(log.open_first()) << size;
  }
  log.batches[0] = original + '\0';
  EXPECT_FALSE(log.open_first());
}

// Changes, inserts, removes and repeats bytes. The trailer is unchanged, so another encoding of the
// same events would pass the hash check: none may be accepted.
void expect_mutations_rejected(int rounds) {
  Log log;
  log.add(one_step(), kAttempt);
  log.add({Progress{.detail = JsonOf<ProgressReport>(json(R"({"percent":50})")), .node_id = "n"},
           model_call({message(std::string(70, 'a')), message("b"), Value(1)}),
           JobCompleted{.result = json(R"({"a":[1,2,3]})")}});
  const char* seed_text = std::getenv("AETHERIS_SEED");
  const std::uint64_t seed =
      seed_text == nullptr ? 20250131 : std::strtoull(seed_text, nullptr, 10);
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const std::size_t which = random() % 2;
    const std::string& original = log.batches[which];
    std::string bytes = original;
    for (std::uint64_t changes = 1 + random() % 3; changes-- > 0;) {
      const std::size_t at = random() % (bytes.size() - kHashSize);
      const std::uint64_t kind = random() % 5;
      const auto byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 8);
      if (kind <= 1) bytes[at] = byte;
      if (kind == 2) bytes.insert(at, 1, byte);
      if (kind == 3 && bytes.size() > kHashSize + 1) bytes.erase(at, 1);
      if (kind == 4) bytes.insert(at, bytes.substr(at, random() % 16));
    }
    const auto opened = open(kJob, bytes, which == 0 ? Hash{} : log.events[6].hash, log.source());
    ASSERT_EQ(opened.has_value(), bytes == original)
        << "repeat with: AETHERIS_SEED=" << seed << " ./dev test mutated; round " << round;
  }
}

AE_TEST("log/seal/mutated batches are rejected without a crash") {
  expect_mutations_rejected(2'000);
}

AE_TEST_SLOW("log/seal/100,000 mutated batches are rejected without a crash") {
  expect_mutations_rejected(100'000);
}

AE_TEST("log/seal/random bytes are rejected without a crash") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = round % 2 == 0 ? "\x01" : "";
    for (std::uint64_t size = random() % 100; size-- > 0;) bytes += static_cast<char>(random());
    ASSERT_FALSE(open(kJob, bytes, Hash{}, Log().source()));
  }
}

}  // namespace
}  // namespace ae::testing

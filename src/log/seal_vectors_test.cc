// Tests of the published vectors, which scripts/verify_vectors.py checks without this program.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/seal.h"
#include "log/seal_fixture_test.h"
#include "testing/test.h"

namespace ae::testing {
namespace {

AE_TEST("log/seal/the vectors of earlier schemas read back unchanged") {
  const char* root = std::getenv("AETHERIS_ROOT");
  if (root == nullptr) GTEST_SKIP() << "set AETHERIS_ROOT to the folder of the sources";
  std::ostringstream stored;
  stored << std::ifstream(std::filesystem::path(root) / "testdata/vectors/chain_1.json",
                          std::ios::binary)
                .rdbuf();
  const Value vectors = parse_json(stored.str()).value();
  std::size_t seen = 0;
  for (const Value& log : vectors["logs"].items()) {
    const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
      return std::string(log["blobs"].text(to_hex(hash)));
    };
    Hash head;
    std::size_t next = 0;
    for (const Value& batch : log["sealed_batches"].items()) {
      const auto opened = open(kJob, *from_hex(batch.as_string()), head, blobs);
      ASSERT_TRUE(opened) << opened.error().message;
      head = opened->head;
      for (const Event& event : opened->events) {
        EXPECT_EQ(envelope(kJob, event), log["events"].items()[next++]);
        seen++;
      }
    }
    EXPECT_EQ(to_hex(head), log.text("head"));
  }
  EXPECT_GT(seen, 70u);
}

// The logs that scripts/verify_vectors.py checks: the events that readers see, and their bytes.
Value vectors() {
  const auto shown_log = [](std::string_view name, const Log& log) {
    std::vector<Value> batches;
    std::vector<Value> events;
    std::vector<Member> blobs;
    blobs.reserve(log.blobs.size());
    Hash head;
    for (const std::string& batch : log.batches) {
      batches.emplace_back(to_hex(batch));
      const OpenedBatch opened = open(log.job, batch, head, log.source()).value();
      for (const Event& event : opened.events) events.push_back(envelope(log.job, event));
      head = opened.head;
    }
    for (const auto& [hash, bytes] : log.blobs) blobs.emplace_back(to_hex(hash), bytes);
    return Value::object({{"name", name},
                          {"head", to_hex(head)},
                          {"sealed_batches", Value::array(std::move(batches))},
                          {"blobs", Value::object(std::move(blobs))},
                          {"events", Value::array(std::move(events))}});
  };
  Log every;
  for (const EventKind& kind : event_kinds()) {
    every.add({event_of(kind.type, sample(kind, true)), event_of(kind.type, sample(kind, false))},
              kAttempt, {.json_inline_max = 16});
  }
  every.add({event_of(
      EventType::job_completed,
      json(R"({"result":[0.1,1e21,-5e-324,1e-7,123456789.25,"\u0007\u20ac\ud83d\ude00"]})"))});
  Log redacted;
  redacted.add(two_values(), AttemptId("by hand"));
  redacted.add(two_values());
  redacted.add({map_decision()});
  redacted.batches[0] = redact(kJob, redacted.batches[0], Hash{}, redacted.source(),
                               [](const Event&, std::string_view) { return true; })
                            .value();
  redacted.batches[2] = redact_items(redacted, 2).value();
  Log keys;
  for (const std::string_view last : {"0", "0123456789abcdef", "att", "own"}) {
    keys.add({started_under(last)}, AttemptId("att"));
  }
  return Value::object(
      {{"about", "Logs of sealed batches and what they say; scripts/verify_vectors.py checks them"},
       {"logs", Value::array({shown_log("every kind of event, full and sparse", every),
                              shown_log("the first two values redacted", redacted),
                              shown_log("external keys of a step, a choice, an attempt, "
                                        "and one that is stored",
                                        keys)})}});
}

AE_TEST("log/seal/this program writes and reads the published vectors") {
  const char* root = std::getenv("AETHERIS_ROOT");
  if (root == nullptr) GTEST_SKIP() << "set AETHERIS_ROOT to the folder of the sources";
  const auto path = std::filesystem::path(root) / "testdata/vectors/chain.json";
  const std::string now = pretty(vectors()) + "\n";
  if (std::getenv("AETHERIS_UPDATE") != nullptr) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << now;
  }
  std::ostringstream stored;
  stored << std::ifstream(path, std::ios::binary).rdbuf();
  EXPECT_TRUE(stored.str() == now)
      << path
      << " differs: stored formats never change. After adding a kind of event, run the test "
      << "with AETHERIS_UPDATE=1 and check the difference.";
}

}  // namespace
}  // namespace ae::testing

// Tests of redact: values are erased, and the chain still verifies.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "json/json.h"
#include "log/redacted.h"
#include "log/seal.h"
#include "log/seal_fixture_test.h"
#include "testing/test.h"

namespace ae::testing {
namespace {

AE_TEST("log/seal/an erased decision can retain a part, which has one valid form") {
  Log log;
  log.add({map_decision()});
  const Hash head = log.open_first().value().head;
  const auto left = redact_items(log, 0);
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->find("ada@x.org"), std::string::npos);
  log.batches[0] = *left;
  const auto opened = log.open_first();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->head, head);
  const auto& decision = *as<DecisionRecorded>(opened->events[0]);
  EXPECT_TRUE(decision.payload.erased);
  EXPECT_EQ(decision.payload.value_or_retained(), json(R"({"items":2})"));
  // Redacting again changes nothing, and a retained part that is not an object is rejected.
  EXPECT_EQ(redact_items(log, 0).value(), *left);
  std::string list = *left;
  list.replace(list.find(R"({"items":2})"), 11, R"(["items:2"])");
  log.batches[0] = list;
  EXPECT_NE(refusal(log.open_first()).find("not an object"), std::string::npos);
}

AE_TEST("log/seal/a redacted value is gone and the chain still verifies") {
  Log log;
  const SealedBatch sealed = log.add(two_values());
  std::vector<std::string> requests;
  const auto redacted = redact(kJob, sealed.bytes, Hash{}, log.source(),
                               [&](const Event& event, std::string_view field) {
                                 requests.push_back(fmt::format("{} {}", event.seq, field));
                                 return true;
                               });
  ASSERT_TRUE(redacted) << redacted.error().message;
  EXPECT_EQ(requests, (std::vector<std::string>{"1 result", "2 error.message"}));
  EXPECT_EQ(redacted->find("xyzzy"), std::string::npos);
  EXPECT_EQ(redacted->find("private words"), std::string::npos);

  const auto opened = open(kJob, *redacted, Hash{}, log.source());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->head, sealed.head);
  const Salt* const salt = salt_of(sealed.events[0], "result");
  ASSERT_NE(salt, nullptr);
  const Hash expected =
      sha256(std::string(salt->bytes.begin(), salt->bytes.end()) + R"({"secret":"xyzzy"})");
  EXPECT_EQ(payload(opened->events[0]),
            R"({"result":{"$redacted":")" + to_hex(expected) + R"("}})");
  EXPECT_TRUE(opened->events[0].salts.empty());
  const auto& finished = *as<NodeFinished>(opened->events[1]);
  EXPECT_EQ(finished.error->code, "c");
  EXPECT_TRUE(finished.error->message.erased);
  EXPECT_TRUE(is_redacted(finished.error->message.value));
  EXPECT_EQ(erased_fields(opened->events[1]), std::vector<std::string>{"error.message"});

  const auto twice = redact(kJob, *redacted, Hash{}, log.source(),
                            [](const Event&, std::string_view) { return true; });
  EXPECT_EQ(twice, redacted) << "a second redaction changes nothing";
  std::string altered = *redacted;
  altered[40] = static_cast<char>(altered[40] ^ 1);
  EXPECT_FALSE(open(kJob, altered, Hash{}, log.source()));
}

AE_TEST("log/seal/redacting no value gives the same bytes for every kind of event") {
  const RedactFilter keep = [](const Event&, std::string_view) { return false; };
  for (const EventKind& kind : event_kinds()) {
    for (const std::size_t inline_max : {8u, 1000u}) {
      Log log;
      const SealedBatch sealed =
          log.add({event_of(kind.type, sample(kind, true))}, kAttempt,
                  {.value_inline_max = inline_max, .json_inline_max = inline_max});
      EXPECT_EQ(redact(kJob, sealed.bytes, Hash{}, log.source(), keep), sealed.bytes) << kind.name;
    }
  }
}

AE_TEST("log/seal/one of several values can be redacted, also a blob") {
  Log log;
  const SealedBatch sealed = log.add(two_values(), kAttempt, {.value_inline_max = 4});
  EXPECT_EQ(sealed.blobs.size(), 2u);
  const auto redacted = redact(kJob, sealed.bytes, Hash{}, log.source(),
                               [](const Event& event, std::string_view) { return event.seq == 1; });
  ASSERT_TRUE(redacted);
  log.blobs.erase(sealed.blobs[0].hash);
  const auto opened = open(kJob, *redacted, Hash{}, log.source());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(as<NodeFinished>(opened->events[1])->error->message.value, "private words");
}

AE_TEST("log/seal/a value that only looks redacted is ordinary while it has its salt") {
  Log log;
  const Value look_alike = Value::object({{"$redacted", kDigest}});
  const SealedBatch sealed = log.add({JobCompleted{.result = look_alike}});
  const auto opened = log.open_first();
  ASSERT_TRUE(opened);
  EXPECT_EQ(as<JobCompleted>(opened->events[0])->result.value, look_alike);
  EXPECT_FALSE(as<JobCompleted>(opened->events[0])->result.erased);
  EXPECT_EQ(opened->events[0].salts, sealed.events[0].salts);
}

}  // namespace
}  // namespace ae::testing

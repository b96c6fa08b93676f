// Tests of open with batches encoded by hand: unknown events, invalid encodings and word numbers.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/seal.h"
#include "log/seal_fixture_test.h"
#include "log/sealed_form.h"
#include "log/words.h"
#include "testing/test.h"

namespace ae::testing {
namespace {

// A batch encoded by hand: one event without an attempt. `payload` is payload' as it is hashed.
std::string encode_event(EventType type, std::uint8_t schema, std::string_view body,
                         std::string_view name, std::string_view payload) {
  Event event;
  event.seq = 1;
  event.type = type;
  event.schema = schema;
  event.body = UnknownEvent{type, std::string(name), {}};
  EventHasher hasher(kJob, Instant{0}, {});
  hasher.begin(event, event_name(event));
  hasher.text() += payload;
  std::string bytes(1, '\x01');
  bytes.append(16, '\0');
  put_big_endian64(0, bytes);
  bytes += std::string("\0\x01\x01", 3);
  put_byte(static_cast<std::uint8_t>(type), bytes);
  put_byte(schema, bytes);
  put_text(body, bytes);
  const Hash hash = hasher.finish();
  return bytes.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
}

std::string text(std::string_view s) {
  std::string out;
  put_text(s, out);
  return out;
}

Result<OpenedBatch> open_encoded(const std::string& bytes) {
  return open(kJob, bytes, Hash{}, Log().source());
}

AE_TEST("log/seal/a narrative event of unknown type is kept, shown and verified") {
  const std::string salt(16, 's');
  const Hash secret = sha256(salt + R"("hush")");
  const std::string body = text("dream_recorded") + text("about") + '\0' + text(R"({"n":1})") +
                           text("secret") + '\x04' + salt + text(R"("hush")");
  const std::string hashed =
      R"({"about":{"n":1},"secret":{"$sha256":")" + to_hex(secret) + R"("}})";
  const auto type = static_cast<EventType>(200);
  const std::string bytes = encode_event(type, 3, body, "dream_recorded", hashed);
  const auto opened = open_encoded(bytes);
  ASSERT_TRUE(opened) << opened.error().message;
  const Event& event = opened->events[0];
  EXPECT_EQ(event.type, type);
  EXPECT_EQ(event_name(event), "dream_recorded");
  EXPECT_EQ(payload(event), R"({"about":{"n":1},"secret":"hush"})");
  EXPECT_EQ(envelope(kJob, event).text("type"), "dream_recorded");

  const auto redacted = redact(kJob, bytes, Hash{}, Log().source(),
                               [](const Event&, std::string_view) { return true; });
  ASSERT_TRUE(redacted);
  EXPECT_EQ(redacted->find("hush"), std::string::npos);
  EXPECT_EQ(open_encoded(*redacted)->head, opened->head);
}

AE_TEST("log/seal/a narrative event of a newer schema is kept") {
  const std::string body = text("progress") + text("brand_new") + '\0' + text("1");
  const auto opened =
      open_encoded(encode_event(EventType::progress, 2, body, "", R"({"brand_new":1})"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(payload(opened->events[0]), R"({"brand_new":1})");
  EXPECT_EQ(
      refusal(open_encoded(encode_event(EventType::progress, 1, body, "", R"({"brand_new":1})"))),
      "log_corrupt: event 1: progress.brand_new is not a field of progress");
}

AE_TEST("log/seal/any other unknown type, schema or format returns needs_version") {
  const std::string by = std::string("\x01") + text("ann");
  const auto code = [](const std::string& bytes) { return open_encoded(bytes).error().code; };
  const auto resumed = EventType::job_resumed;
  ASSERT_TRUE(open_encoded(encode_event(resumed, 1, by, "", R"({"by":"ann"})")));
  EXPECT_EQ(code(encode_event(resumed, 2, by, "", R"({"by":"ann"})")), Code::needs_version);
  EXPECT_EQ(code(encode_event(static_cast<EventType>(127), 1, "", "x", "{}")), Code::needs_version);
  std::string next_format = encode_event(resumed, 1, by, "", R"({"by":"ann"})");
  next_format[0] = 2;
  EXPECT_EQ(code(next_format), Code::needs_version);
}

AE_TEST("log/seal/every payload has exactly one valid encoding") {
  const auto resumed = [](const std::string& body) {
    return refusal(
        open_encoded(encode_event(EventType::job_resumed, 1, body, "", R"({"by":"ann"})")));
  };
  EXPECT_EQ(resumed("\x01" + text("ann")), "accepted");
  EXPECT_EQ(resumed(std::string("\x01\x83\x00", 3) + "ann"),
            "log_corrupt: event 1: its bytes end too early")
      << "a varint that is not minimal";
  EXPECT_EQ(resumed("\x21" + text("ann")), "log_corrupt: event 1: by has an unknown form");
  EXPECT_EQ(resumed("\x02" + text("ann")), "log_corrupt: event 1: an unknown field, number 2");
  EXPECT_EQ(resumed("\x01" + text("ann") + "\x01" + text("ann")),
            "log_corrupt: event 1: fields out of order");
  EXPECT_EQ(resumed(""), "log_corrupt: event 1: job_resumed.by is missing");
  EXPECT_EQ(resumed("\x01" + text("\xff")), "log_corrupt: event 1: a text is not UTF-8");

  const auto parked = [](const std::string& body) {
    return refusal(
        open_encoded(encode_event(EventType::job_parked, 1, "\x01" + text("r") + "\x02" + body, "",
                                  R"({"reason":"r","until":"resume"})")));
  };
  EXPECT_EQ(parked(std::string(1, static_cast<char>(word_number("resume")))), "accepted");
  EXPECT_EQ(parked('\0' + text("resume")),
            "log_corrupt: event 1: until spells out a word of the list");
  EXPECT_EQ(parked("\xff"), "log_corrupt: event 1: until is a word that is not in the list");

  const auto cancelled = [](const std::string& value) {
    return refusal(open_encoded(encode_event(EventType::job_cancelled, 1, "\x03" + text(value), "",
                                             R"({"in_doubt":{"a":1,"b":2}})")));
  };
  EXPECT_EQ(cancelled(R"({"a":1,"b":2})"), "accepted");
  EXPECT_EQ(cancelled(R"({"b":2,"a":1})"),
            "log_corrupt: event 1: a value is not in canonical form");
  EXPECT_EQ(cancelled(R"({"a":1.0,"b":2})"),
            "log_corrupt: event 1: a value is not in canonical form");
  EXPECT_EQ(cancelled("null"), "log_corrupt: event 1: in_doubt is null");
  EXPECT_TRUE(cancelled("{").starts_with("log_corrupt: event 1: a value is invalid JSON"));

  std::string attempt_as_text(1, '\x01');
  attempt_as_text.append(24, '\0').append("\x02" + text(kAttempt.text)).append(40, '\x01');
  EXPECT_EQ(refusal(open_encoded(attempt_as_text)),
            "log_corrupt: the attempt's UUID is written as text");
}

AE_TEST("log/seal/an impossible length or count is rejected") {
  std::string bytes(1, '\x01');
  bytes.append(24, '\0');
  bytes += '\0';
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
  EXPECT_EQ(refusal(open_encoded(bytes + huge + "\x01")), "log_corrupt: an impossible event count");
  EXPECT_EQ(refusal(open_encoded(bytes + "\x01" + huge + std::string(40, 'x'))),
            "log_corrupt: an impossible sequence number");
  EXPECT_EQ(refusal(open_encoded(bytes + "\x01\x01\x24\x01" + huge + std::string(40, 'x'))),
            "log_corrupt: event 1: the batch ends too early");
}

AE_TEST("log/seal/word numbers never change") {
  EXPECT_EQ(word_number("success"), 1);
  EXPECT_EQ(word_number("side_effect_committed"), 6);
  EXPECT_EQ(word_number("person"), 50);
  EXPECT_EQ(word_number("no such word"), 0);
  EXPECT_EQ(word_number(""), 0);
  EXPECT_EQ(word_text(0), "");
  for (int i = 1; i < 256; ++i) {
    const auto number = static_cast<std::uint8_t>(i);
    if (!word_text(number).empty()) {
      EXPECT_EQ(word_number(word_text(number)), number);
    }
  }
}

}  // namespace
}  // namespace ae::testing

#include "log/event.h"

#include <algorithm>
#include <set>

#include "json/json.h"
#include "log/sealed_form.h"
#include "testing/test.h"

namespace ae {
namespace {

Value event_json(std::string_view text) { return parse_json(text).value(); }

std::string field_problem(EventType type, std::string_view payload) {
  const Status status = check_payload(*event_kind(type), event_json(payload));
  if (status) return "fine";
  EXPECT_EQ(status.error().code, Code::log_corrupt);
  return status.error().message;
}

AE_TEST("log/event/event kinds are found by number and by name") {
  for (const EventKind& kind : event_kinds()) {
    EXPECT_EQ(event_kind(kind.type), &kind);
    EXPECT_EQ(event_kind(kind.name), &kind);
    EXPECT_EQ(event_name(kind.type), kind.name);
  }
  EXPECT_EQ(event_kind(static_cast<EventType>(255)), nullptr);
  EXPECT_EQ(event_kind(static_cast<EventType>(0)), nullptr);
  EXPECT_EQ(event_kind("no_such_event"), nullptr);
  EXPECT_EQ(event_name(static_cast<EventType>(255)), "");
}

AE_TEST("log/event/the event table follows the rules of the stored form") {
  std::set<std::string_view> names;
  for (const EventKind& kind : event_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_GE(kind.schema, 1);
    const bool high = static_cast<std::uint8_t>(kind.type) >= kNarrativeFrom;
    EXPECT_EQ(high, kind.event_class == EventClass::narrative) << kind.name;
    std::set<int> numbers;
    std::string_view previous;
    for (const Field& field : kind.fields) {
      EXPECT_TRUE(previous.empty() || key_less(previous, field.name)) << kind.name << field.name;
      previous = field.name;
      EXPECT_TRUE(numbers.insert(field.number).second) << kind.name << "." << field.name;
      EXPECT_TRUE(field.number >= 1 && field.number <= kFieldNumberMax) << field.name;
      EXPECT_FALSE(high && field.kind == FieldKind::error) << "named members hold no errors";
      if (field.kind == FieldKind::external_key) {
        EXPECT_NE(std::ranges::find(kind.fields, "step_id", &Field::name), kind.fields.end());
      }
    }
  }
}

AE_TEST("log/event/a payload has exactly the fields of its kind") {
  using enum EventType;
  EXPECT_EQ(field_problem(node_started, R"({"node_id":"a","step_id":"0123456789abcdef","try":1})"),
            "fine");
  EXPECT_EQ(field_problem(node_started, R"({"node_id":"a","step_id":"0123456789abcdef"})"),
            "node_started.try is missing");
  EXPECT_EQ(
      field_problem(node_started, R"({"node_id":"a","step_id":"0123456789abcdef","try":null})"),
      "node_started.try is missing");
  EXPECT_EQ(
      field_problem(node_started, R"({"node_id":"a","step_id":"0123456789abcdef","try":1,"z":1})"),
      "node_started.z is not a field of node_started");
  EXPECT_EQ(
      field_problem(node_started, R"({"a":1,"node_id":"a","step_id":"0123456789abcdef","try":1})"),
      "node_started.node_id is missing");
  EXPECT_EQ(field_problem(node_started, "[]"), "node_started is not an object");
}

AE_TEST("log/event/a field whose value does not match its type is rejected") {
  using enum EventType;
  EXPECT_EQ(field_problem(node_started, R"({"node_id":1,"step_id":"0123456789abcdef","try":1})"),
            "node_started.node_id is not a text");
  EXPECT_EQ(field_problem(node_started, R"({"node_id":"a","step_id":"0123456789ABCDEF","try":1})"),
            "node_started.step_id is not 16 lower-case hex digits");
  EXPECT_EQ(
      field_problem(node_started, R"({"node_id":"a","step_id":"0123456789abcdef","try":1.5})"),
      "node_started.try is not an integer");
  EXPECT_EQ(field_problem(job_requeued, R"({"reason":"r","not_before":"2025-01-31T09:30:00Z"})"),
            "job_requeued.not_before is not a time like 2025-01-31T09:30:00.000000Z");
  EXPECT_EQ(
      field_problem(job_requeued, R"({"reason":"r","not_before":"2025-01-31T09:30:00.000000Z"})"),
      "fine");
  EXPECT_EQ(field_problem(job_cancel_requested, R"({"compensate":0})"),
            "job_cancel_requested.compensate is not true or false");
  const auto finished = [](std::string_view error) {
    return field_problem(
        node_finished,
        std::string(R"({"node_id":"a","result_type":"pure","step_id":"0123456789abcdef",)") +
            R"("try":1,"error":)" + std::string(error) + "}");
  };
  EXPECT_EQ(finished(R"({"code":"c","message":"m"})"), "fine");
  EXPECT_EQ(finished(R"({"code":"c","message":{"$redacted":")" + std::string(64, '0') + R"("}})"),
            "fine");
  EXPECT_EQ(finished(R"({"code":"c"})"), "node_finished.error is not {code, message}, both texts");
  EXPECT_EQ(finished(R"({"code":"c","message":"m","more":1})"),
            "node_finished.error is not {code, message}, both texts");
}

AE_TEST("log/event/null means absent, except where a value is required") {
  using enum EventType;
  EXPECT_EQ(field_problem(job_cancelled, R"({"by":null,"in_doubt":null})"), "fine");
  EXPECT_EQ(field_problem(job_completed, R"({"result":null})"), "fine");
  EXPECT_EQ(field_problem(job_completed, "{}"), "job_completed.result is missing");
}

AE_TEST("log/event/an envelope shows every hashed field") {
  Event event;
  event.seq = 7;
  event.id = uuid_v7(1, 2, 3);
  event.type = EventType::job_resumed;
  event.created_at = Instant{0};
  event.body = JobResumed{.by = "ann"};
  EXPECT_EQ(canonical(envelope(JobId("job-1"), event)),
            R"({"created_at":"1970-01-01T00:00:00.000000Z","hash":")" + std::string(64, '0') +
                R"(","id":"00000000-0001-7002-8000-000000000003","job_id":"job-1","payload":)" +
                R"({"by":"ann"},"prev_hash":")" + std::string(64, '0') +
                R"(","schema":1,"seq":7,"type":"job_resumed"})");
  event.attempt_id = AttemptId("a1");
  event.salts = {{"x", {0xab}}};
  EXPECT_EQ(envelope(JobId("job-1"), event).text("attempt_id"), "a1");
  EXPECT_EQ(canonical(envelope(JobId("job-1"), event)["salts"]),
            R"({"x":"ab)" + std::string(30, '0') + R"("})");
}

}  // namespace
}  // namespace ae

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "json/json.h"
#include "log/decisions.h"
#include "log/records.h"
#include "testing/test.h"

namespace ae {
namespace {

Value decision_json(std::string_view text) { return parse_json(text).value(); }

// ---- a struct with a value in each field, or in each required one

enum class Fields { all, required };

void fill(Fields, std::string& text) { text = "a text"; }
void fill(Fields, Word& word) { word = "tokens"; }
void fill(Fields, std::int64_t& number) { number = 7; }
void fill(Fields, bool& flag) { flag = true; }
void fill(Fields, Instant& instant) { instant = {1'700'000'000'123'456}; }
void fill(Fields, Hash& hash) { hash = sha256("a hash"); }
void fill(Fields, NullableJson& json) { json.value = Value("json"); }
void fill(Fields, Value& value) { value = decision_json(R"({"n":[1,null]})"); }
template <class Tag, std::size_t Size>
void fill(Fields, Id<Tag, Size>& id) {
  id.text = std::string(Size, 'a');
}
void fill(Fields, IdempotencyKey& key) { key.text = std::string(64, 'a'); }
template <class T>
void fill(Fields fields, std::vector<T>& records);
template <class T>
  requires requires { T::fields(); }
void fill(Fields fields, T& record) {
  visit_fields(record, [fields]<class Member>(auto field, Member& member) {
    if (!field.required() && fields == Fields::required) return;
    if constexpr (requires { member.emplace(); }) {
      fill(fields, member.emplace());
    } else {
      fill(fields, member);
    }
  });
}
template <class T>
void fill(Fields fields, std::vector<T>& records) {
  fill(fields, records.emplace_back());
  fill(Fields::required, records.emplace_back());
}

// Each state of the decision; one empty one if it has none.
std::vector<std::string> states_of(std::string_view states) {
  std::vector<std::string> all(1);
  for (const char c : states) {
    if (c == ' ') {
      all.emplace_back();
    } else {
      all.back() += c;
    }
  }
  return all;
}

template <class Decision>
DecisionRecorded recorded(const Decision& decision, const std::string& state) {
  DecisionRecorded event{.by = "ann", .decision_id = DecisionId("0123456789abcdef")};
  if (!state.empty()) event.state = state;
  return decision_event(decision, event);
}

template <class Decision>
void expect_round_trip(std::string_view name) {
  for (const Fields fields : {Fields::all, Fields::required}) {
    Decision decision;
    fill(fields, decision);
    for (const std::string& state : states_of(Decision::kStates)) {
      SCOPED_TRACE(fmt::format("{} {}", name, state));
      const DecisionRecorded event = recorded(decision, state);
      EXPECT_EQ(event.kind, Decision::kKind);
      EXPECT_EQ(or_empty(event.state), state);
      EXPECT_EQ(event.by, "ann") << "the fields of the event stay";
      EXPECT_FALSE(event.payload.is_null());
      const auto body = decision_body(event);
      ASSERT_TRUE(body) << body.error().message;
      ASSERT_TRUE(std::holds_alternative<Decision>(*body));
      EXPECT_EQ(std::get<Decision>(*body), decision);
      EXPECT_EQ(decision_as<Decision>(event), decision);
    }
  }
}

AE_TEST("log/decision/every kind of decision reads back unchanged") {
#define AE_DECISION(Struct, kind, states, schema, ...) expect_round_trip<Struct>(#Struct);
#include "log/define_records.h"
}

template <class Record>
void expect_record_round_trip(std::string_view name) {
  for (const Fields fields : {Fields::all, Fields::required}) {
    SCOPED_TRACE(name);
    Record record;
    fill(fields, record);
    const Value stored = record_json(record);
    const auto read = record_from_json<Record>(stored);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, record);
    const std::vector<Record> two{record, *read};
    EXPECT_EQ(JsonOf(two).json(), record_list_json(two));
    EXPECT_EQ(JsonOf(two).read().value(), two);
    EXPECT_EQ(JsonOf(two).read_leniently(), two);
    EXPECT_EQ(JsonOf<Record>(stored.with("brand_new", 1)).read_leniently(), record);
    EXPECT_FALSE(record_from_json<Record>(stored.with("brand_new", 1)));
    EXPECT_FALSE(JsonOf<std::vector<Record>>(stored).read()) << "not a list";
  }
}

AE_TEST("log/decision/every record reads back unchanged and rejects unknown fields") {
#define AE_RECORD(Struct, name, ...) expect_record_round_trip<Struct>(#Struct);
#include "log/define_records.h"
}

AE_TEST("log/decision/a field of an event preserves other JSON than its record") {
  const Value usage = decision_json(
      R"({"input_tokens":7,"total_tokens":"many","incomplete":null,"by_tier":{"a":1}})");
  const auto* const kind = event_kind(EventType::command_committed);
  const Value payload = decision_json(R"({"command_id":"0123456789abcdef","node_id":"n",
      "step_id":"0123456789abcdef"})")
                            .with("usage", usage);
  const auto event = event_from_json(*kind, payload);
  ASSERT_TRUE(event) << event.error().message;
  EXPECT_EQ(payload_json(*event), payload);
  const auto& committed = std::get<CommandCommitted>(*event);
  EXPECT_FALSE(committed.usage.read());
  const TokenUsage read = committed.usage.read_leniently();
  EXPECT_EQ(read, (TokenUsage{.incomplete = false, .input_tokens = 7, .total_tokens = 0}));
  EXPECT_EQ(JsonOf<TokenUsage>(Value(1)).read_leniently(), TokenUsage());
  const JsonOf<std::vector<std::string>> texts(decision_json(R"(["a",1,"b"])"));
  EXPECT_FALSE(texts.read());
  EXPECT_EQ(texts.read_leniently(), (std::vector<std::string>{"a", "b"}));
}

AE_TEST("log/decision/the fields of the tables are in canonical order") {
  const auto expect_order = [](std::string_view name, std::span<const Field> fields) {
    EXPECT_FALSE(fields.empty()) << name;
    for (std::size_t i = 1; i < fields.size(); ++i) {
      EXPECT_TRUE(key_less(fields[i - 1].name, fields[i].name)) << name << " " << fields[i].name;
    }
  };
#define AE_RECORD(Struct, name, ...) expect_order(#Struct, Struct::fields());
#define AE_DECISION(Struct, kind, states, schema, ...) expect_order(#Struct, Struct::fields());
#include "log/define_records.h"
}

AE_TEST("log/decision/the stored form matches the first version") {
  const auto payload = [](const auto& decision, const std::string& state = {}) {
    return canonical(recorded(decision, state).payload.value);
  };
  const StepId step("0123456789abcdef");
  EXPECT_EQ(payload(BranchTaken{.taken = false}), "false");
  EXPECT_EQ(payload(MapListed{.list = decision_json("[1,2]")}), "[1,2]");
  EXPECT_EQ(payload(RetryScheduled{.try_no = 2}), R"({"try":2})");
  EXPECT_EQ(payload(EndDecided{.code = "c", .message = "m"}), R"({"code":"c","message":"m"})");
  EXPECT_EQ(payload(ToolChosen{
                .choice = {.calls = {{.id = "a", .name = "put"},
                                     {.id = "b",
                                      .name = "x",
                                      .refused = RefusedCall{.code = "c", .message = "m"}}},
                           .of = InvocationId("0123456789abcdef"),
                           .turn = 0}}),
            R"({"calls":[{"id":"a","name":"put"},{"id":"b","name":"x","refused":{"code":"c",)"
            R"("message":"m"}}],"of":"0123456789abcdef","turn":0})");
  EXPECT_EQ(payload(ApprovalAnswered{.approval_id = DecisionId("fedcba9876543210"),
                                     .arguments_hash = "h",
                                     .command_id = step,
                                     .tool = "buy"},
                    "approved"),
            R"({"approval_id":"fedcba9876543210","arguments_hash":"h",)"
            R"("command_id":"0123456789abcdef","tool":"buy"})");
  EXPECT_EQ(payload(BudgetExceeded{.limit = "wall", .most = Value("1h")}),
            R"({"limit":"wall","most":"1h"})");
  EXPECT_EQ(payload(ConfirmationRequested{.resources = {{.expected = Value("v1"),
                                                         .resource_id = "r",
                                                         .resource_type = "t",
                                                         .verdict = "mismatch"}}}),
            R"({"resources":[{"expected":"v1","observed":null,"reason":null,"resource_id":"r",)"
            R"("resource_type":"t","verdict":"mismatch"}]})");
}

std::string problem(DecisionRecorded event) {
  const auto body = decision_body(event);
  if (body) return "fine";
  EXPECT_EQ(body.error().code, Code::log_corrupt);
  return body.error().message;
}

AE_TEST("log/decision/unknown kinds or states and invalid payloads are log_corrupt") {
  EXPECT_EQ(problem({.kind = "reroute", .payload = Value(1)}),
            "an unknown decision: kind reroute, state none");
  EXPECT_EQ(problem({.kind = "budget", .payload = Value(1), .state = "lowered"}),
            "an unknown decision: kind budget, state lowered");
  EXPECT_EQ(problem({.kind = "budget", .payload = Value(1)}),
            "an unknown decision: kind budget, state none");
  EXPECT_EQ(problem({.kind = "retry", .payload = decision_json(R"({"try":2})"), .state = "soon"}),
            "an unknown decision: kind retry, state soon");
  EXPECT_EQ(problem({.kind = "approval", .payload = Value(), .state = "approved rejected"}),
            "an unknown decision: kind approval, state approved rejected");
  EXPECT_EQ(problem({.kind = "retry", .payload = decision_json(R"({"try":2})")}), "fine");
  EXPECT_EQ(problem({.kind = "retry", .payload = decision_json("{}")}), "retry.try is missing");
  EXPECT_EQ(problem({.kind = "retry", .payload = decision_json(R"({"try":null})")}),
            "retry.try is missing");
  EXPECT_EQ(problem({.kind = "retry", .payload = decision_json(R"({"try":"2"})")}),
            "retry.try is not an integer");
  EXPECT_EQ(problem({.kind = "retry", .payload = decision_json(R"({"try":2,"until":1})")}),
            "retry.until is not a field of retry");
  EXPECT_EQ(problem({.kind = "retry", .payload = Value(2)}), "retry is not an object");
  const auto choice = [](std::string_view calls) {
    return problem(
        {.kind = "tool_choice",
         .payload = decision_json(std::string(R"({"calls":)")
                                      .append(calls)
                                      .append(R"(,"of":"0123456789abcdef","turn":0})"))});
  };
  EXPECT_EQ(choice("[]"), "fine");
  EXPECT_EQ(choice("{}"), "the value of chosen_call is not a list");
  EXPECT_EQ(choice(R"([{"name":1}])"), "chosen_call.name is not a text");
  EXPECT_EQ(choice(R"([{"refused":{"message":"m"}}])"), "refused_call.code is missing");
}

AE_TEST("log/decision/a branch payload is the result of a `when` or the list of a map") {
  const auto body = [](Value payload) {
    return decision_body({.kind = "branch", .payload = std::move(payload)}).value();
  };
  EXPECT_EQ(std::get<BranchTaken>(body(true)), BranchTaken{.taken = true});
  EXPECT_EQ(std::get<MapListed>(body(decision_json("[]"))), MapListed{.list = decision_json("[]")});
}

// ---- erasure

DecisionRecorded erased(DecisionRecorded event, const Value& left) {
  Value value = Value::object({{"$redacted", std::string(64, 'a')}});
  event.payload = left.is_null() ? value : value.with("left", left);
  event.payload.erased = true;
  return event;
}

template <class Decision>
void expect_readable_after_erasure(std::string_view name) {
  if constexpr (std::is_same_v<Decision, BranchTaken>) return;  // it is never erased
  Decision decision;
  fill(Fields::all, decision);
  for (const bool blinded : {false, true}) {
    SCOPED_TRACE(name);
    const std::string state = states_of(Decision::kStates).front();
    const Value left = retained_payload(decision, blinded);
    const DecisionRecorded event = erased(recorded(decision, state), left);
    const auto body = decision_as<Decision>(event);
    ASSERT_TRUE(body);
    EXPECT_TRUE(body->erased);
    EXPECT_NE(*body, decision);
    EXPECT_TRUE(decision_as<Decision>(erased(event, {}))) << "nothing is left of it";
  }
}

AE_TEST("log/decision/every kind of decision can be read after its payload is erased") {
#define AE_DECISION(Struct, kind, states, schema, ...) \
  expect_readable_after_erasure<Struct>(#Struct);
#include "log/define_records.h"
}

AE_TEST("log/decision/an erased payload retains only its structure") {
  const auto left = [](const DecisionBody& decision, bool blinded = true) {
    return canonical(retained_payload(decision, blinded));
  };
  EXPECT_EQ(left(BranchTaken{.taken = true}), "null");
  EXPECT_EQ(left(MapListed{.list = decision_json("[1,2]")}), R"({"items":2})");
  EXPECT_EQ(left(RetryScheduled{.try_no = 2}), "null");
  EXPECT_EQ(left(BudgetRaised{.limits = {.tokens = 9}}), "null");
  EXPECT_EQ(left(EndDecided{.code = "c", .message = "m"}), R"({"code":"c"})");
  const ArgumentsEdited edit{.approval_id = DecisionId("fedcba9876543210"),
                             .arguments = decision_json(R"({"n":1})"),
                             .arguments_hash = "h",
                             .command_id = StepId("0123456789abcdef"),
                             .edited_from = "f",
                             .tool = "buy"};
  EXPECT_EQ(left(edit), R"({"approval_id":"fedcba9876543210","arguments_hash":"h",)"
                        R"("command_id":"0123456789abcdef","edited_from":"f","tool":"buy"})");
  EXPECT_EQ(left(edit, false), R"({"approval_id":"fedcba9876543210",)"
                               R"("command_id":"0123456789abcdef","tool":"buy"})");
  const ToolChosen chosen{
      .choice = {.calls = {{.id = "a", .name = "put"},
                           {.id = "b",
                            .name = "ada",
                            .refused = RefusedCall{.code = "c", .message = "m"}}},
                 .of = InvocationId("0123456789abcdef"),
                 .repair = "why",
                 .turn = 1}};
  EXPECT_EQ(left(chosen), R"({"calls":[{"name":"put"},{"refused":{"code":"c"}}],)"
                          R"("of":"0123456789abcdef","repair":"","turn":1})");
  const MapListed map{.list = decision_json(R"({"items":2})"), .erased = true};
  EXPECT_EQ(retained_item_count(map), 2);
  EXPECT_EQ(retained_item_count({.list = decision_json(R"({"items":"2"})"), .erased = true}),
            std::nullopt);
}

}  // namespace
}  // namespace ae

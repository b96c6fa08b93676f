// Decisions: their field tables, and how they are stored in a decision_recorded.
#include "log/decisions.h"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <utility>

#include "log/field_json.h"

namespace ae {
namespace {

// Is it one of these, which are separated by spaces?
bool is_listed(std::string_view state, std::string_view states) {
  while (!states.empty()) {
    const std::size_t end = std::min(states.find(' '), states.size());
    if (states.substr(0, end) == state) return true;
    states.remove_prefix(std::min(end + 1, states.size()));
  }
  return false;
}

// What is left of the payload; null: nothing.
const Value* readable_payload(const DecisionRecorded& event) {
  return event.payload.erased ? event.payload.value.find("left") : &event.payload.value;
}

template <class Decision>
Status read_payload(const DecisionRecorded& event, Decision& decision) {
  decision.erased = event.payload.erased;
  const Value* const payload = readable_payload(event);
  if (payload == nullptr) return {};
  if constexpr (Decision::kIsValue) {
    Status status;
    visit_fields(decision, [&](auto, auto& member) { status = read_json(*payload, member); });
    return status;
  } else {
    AE_TRY(check_fields(
        {.of = Decision::kName, .fields = Decision::fields(), .partial = decision.erased},
        *payload));
    return read_fields(*payload, decision);
  }
}

template <class Decision>
Value payload_of(const Decision& decision) {
  if constexpr (Decision::kIsValue) {
    Value payload;
    visit_fields(decision, [&](auto, const auto& member) { payload = field_json(member); });
    return payload;
  } else {
    return fields_json(decision);
  }
}

template <class Record>
Value retained(const Record& record, bool blinded);

template <class T>
Value retained_member(const T& member, bool blinded) {
  if constexpr (IsRecord<T>) {
    return retained(member, blinded);
  } else if constexpr (requires { requires IsRecord<typename T::value_type>; }) {
    std::vector<Value> items;
    items.reserve(member.size());
    for (const auto& record : member) items.push_back(retained(record, blinded));
    return Value::array(std::move(items));
  } else {
    return field_json(member);
  }
}

template <class Record>
Value retained(const Record& record, bool blinded) {
  std::vector<Member> members;
  visit_fields(record, [&](auto field, const auto& member) {
    const bool remains = field.retention() == Retention::kept ||
                         (field.retention() == Retention::blinded && blinded);
    if (!remains || !is_present(field, member)) return;
    members.emplace_back(field.name(), retained_member(content_of(member), blinded));
  });
  return Value::object(std::move(members));
}

constexpr std::string_view kItems = "items";

Value retained_decision(const MapListed& map, bool) {
  return map.list.is_array()
             ? Value::object({{std::string(kItems), std::uint64_t{map.list.size()}}})
             : Value();
}

// A model may choose any name for a call that is refused, and a repair quotes its answer.
Value retained_decision(const ToolChosen& chosen, bool blinded) {
  ToolChoice choice = chosen.choice;
  for (ChosenCall& call : choice.calls) {
    if (call.refused) call.name.reset();
  }
  if (choice.repair) choice.repair->clear();
  return retained(choice, blinded);
}

template <class Decision>
Value retained_decision(const Decision& decision, bool blinded) {
  if constexpr (Decision::kIsValue) return {};
  const Value left = retained(decision, blinded);
  return left.size() > 0 ? left : Value();
}

}  // namespace

template <class Decision>
bool is_decision(const DecisionRecorded& event) {
  if (event.kind != Decision::kKind) return false;
  // The kind `branch` is a map's list, unless it is the value of a `when`.
  if constexpr (std::is_same_v<Decision, BranchTaken>) {
    if (!event.payload.value.is_bool()) return false;
  } else if constexpr (std::is_same_v<Decision, MapListed>) {
    if (event.payload.value.is_bool()) return false;
  }
  return Decision::kStates.empty() ? !event.state
                                   : event.state && is_listed(*event.state, Decision::kStates);
}

template <class Decision>
std::optional<Decision> decision_as(const DecisionRecorded& event) {
  if (!is_decision<Decision>(event)) return std::nullopt;
  Decision decision;
  if (!read_payload(event, decision)) return std::nullopt;
  return decision;
}

template <class Decision>
DecisionRecorded decision_event(const Decision& decision, DecisionRecorded event) {
  constexpr std::string_view kStates = Decision::kStates;
  constexpr bool kHasChoice = kStates.find(' ') != kStates.npos;
  if constexpr (kHasChoice) {
    AE_CHECK(event.state && is_listed(*event.state, kStates), "a decision without its state");
  } else if constexpr (!kStates.empty()) {
    event.state = kStates;
  }
  event.kind = Decision::kKind;
  event.payload = payload_of(decision);
  return event;
}

Result<DecisionBody> decision_body(const DecisionRecorded& event) {
#define AE_DECISION(Struct, kind, states, schema, ...) \
  if (is_decision<Struct>(event)) {                    \
    Struct decision;                                   \
    AE_TRY(read_payload(event, decision));             \
    return decision;                                   \
  }
#include "log/define_records.h"
  return fail(Code::log_corrupt, "an unknown decision: kind {}, state {}", event.kind.view(),
              event.state ? event.state->view() : "none");
}

Value retained_payload(const DecisionBody& decision, bool blinded) {
  return std::visit([blinded](const auto& body) { return retained_decision(body, blinded); },
                    decision);
}

std::optional<std::int64_t> retained_item_count(const MapListed& map) {
  const Value& items = map.list[kItems];
  return items.is_integer() ? std::optional(items.as_int()) : std::nullopt;
}

#define AE_REQUIRED_AS(kind, member, name, left, meaning) \
  Field{name, 0, field_kind::kind::kKind, true},
#define AE_OPTIONAL_AS(kind, member, name, left, meaning) \
  Field{name, 0, field_kind::kind::kKind, false},
#define AE_DECISION(Struct, kind, states, schema, ...)                         \
  std::span<const Field> Struct::fields() {                                    \
    static constexpr auto kFields = std::to_array<Field>({__VA_ARGS__});       \
    return kFields;                                                            \
  }                                                                            \
  template bool is_decision<Struct>(const DecisionRecorded&);                  \
  template std::optional<Struct> decision_as<Struct>(const DecisionRecorded&); \
  template DecisionRecorded decision_event<Struct>(const Struct&, DecisionRecorded);
#include "log/define_records.h"

}  // namespace ae

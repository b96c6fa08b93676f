// Decisions: what a `decision_recorded` event decides, as C++ types: one struct per entry of
// decisions.def, with the fields of the payload as members.
//
// The event itself (DecisionRecorded) has the rest: who, when, which step, why. An erased payload
// gives a struct with `erased`, in which only the retained fields are set.
//
// Threads: values, pure functions. See docs/decisions/0085-typed-decisions.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "log/event.h"
#include "log/records.h"

namespace ae {

#define AE_REQUIRED_AS(kind, member, name, left, meaning) \
  field_kind::Required<field_kind::kind> member{};
#define AE_OPTIONAL_AS(kind, member, name, left, meaning) \
  field_kind::Optional<field_kind::kind> member{};
#define AE_DECISION_STRUCT(Struct, kind, states, is_value, ...)             \
  struct Struct {                                                           \
    static constexpr std::string_view kName = #kind;                        \
    static constexpr std::string_view kKind = #kind;                        \
    static constexpr std::string_view kStates = states;                     \
    static constexpr bool kIsValue = is_value; /* the payload is a field */ \
    static std::span<const Field> fields();                                 \
    __VA_ARGS__                                                             \
    bool erased = false; /* the payload is no longer in the log */          \
    bool operator==(const Struct&) const = default;                         \
  };
#define AE_DECISION(Struct, kind, states, schema, ...) \
  AE_DECISION_STRUCT(Struct, kind, states, false, __VA_ARGS__)
#define AE_VALUE_DECISION(Struct, kind, states, schema, ...) \
  AE_DECISION_STRUCT(Struct, kind, states, true, __VA_ARGS__)
#include "log/define_records.h"

#define AE_REQUIRED_AS(kind, member, name, left, meaning) \
  AE_VISIT_REQUIRED(kind, member, name, left)
#define AE_OPTIONAL_AS(kind, member, name, left, meaning) \
  AE_VISIT_OPTIONAL(kind, member, name, left)
#define AE_DECISION(Struct, kind, states, schema, ...) AE_VISIT_FIELDS(Struct, __VA_ARGS__)
#include "log/define_records.h"

// The first type only stands before the comma.
template <class, class... Decision>
using DecisionVariant = std::variant<Decision...>;
using DecisionBody = DecisionVariant<void
#define AE_DECISION(Struct, kind, states, schema, ...) , Struct
#include "log/define_records.h"
                                     >;
#undef AE_VISIT_FIELDS
#undef AE_VISIT_REQUIRED
#undef AE_VISIT_OPTIONAL

// Fails with log_corrupt: an unknown kind or state, an unknown or missing field, a wrong type.
Result<DecisionBody> decision_body(const DecisionRecorded& event);

// Is it this decision? The payload may still be invalid.
template <class Decision>
bool is_decision(const DecisionRecorded& event);
// nullopt: it is another decision, or its payload is invalid.
template <class Decision>
std::optional<Decision> decision_as(const DecisionRecorded& event);
template <class Decision>
std::optional<Decision> decision_as(const Event& event) {
  const auto* recorded = as<DecisionRecorded>(event);
  return recorded != nullptr ? decision_as<Decision>(*recorded) : std::nullopt;
}

// The event with its kind and its payload, and its state if the decision has only one. REQUIRES:
// `event` has one of the states, if there are several.
template <class Decision>
DecisionRecorded decision_event(const Decision& decision, DecisionRecorded event);

// What remains when the payload is erased, as JSON; null: nothing.
Value retained_payload(const DecisionBody& decision, bool blinded);
// Of an erased list; nullopt: not recorded.
std::optional<std::int64_t> retained_item_count(const MapListed& map);

}  // namespace ae

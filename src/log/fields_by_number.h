// Fields by number: visits the fields of an event in the order of its stored body. visit_fields
// (log/events.h) visits them by name, the order in which they are hashed.
//
// Threads: pure functions.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "log/events.h"
#include "log/sealed_form.h"

namespace ae {

// Calls visit(FieldOf, member) for the field of that number, if the event has one.
#define AE_REQUIRED_AS(kind, member, name, number, meaning) \
  if constexpr (Number == number)                           \
    visit(FieldOf<field_kind::kind::kKind, number, true>{name}, event.member);
#define AE_OPTIONAL_AS(kind, member, name, number, meaning) \
  if constexpr (Number == number)                           \
    visit(FieldOf<field_kind::kind::kKind, number, false>{name}, event.member);
#define AE_EVENT(Struct, name, number, event_class, schema, ...)                   \
  template <std::uint8_t Number, class Event, class Visit>                         \
    requires std::same_as<std::remove_const_t<Event>, Struct>                      \
  void visit_field([[maybe_unused]] Event& event, [[maybe_unused]] Visit& visit) { \
    __VA_ARGS__                                                                    \
  }
#include "log/define_events.h"

template <class Event, class Visit>
void visit_fields_by_number(Event& event, Visit&& visit) {
  [&]<std::uint8_t... Number>(std::integer_sequence<std::uint8_t, Number...>) {
    (visit_field<Number + 1>(event, visit), ...);
  }(std::make_integer_sequence<std::uint8_t, kFieldNumberMax>());
}

}  // namespace ae

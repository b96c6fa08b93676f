// The event table as constant data.
#include <array>
#include <span>

#include "log/events.h"

namespace ae {
namespace {

#define AE_REQUIRED_AS(kind, member, name, number, meaning) \
  {name, number, field_kind::kind::kKind, true},
#define AE_OPTIONAL_AS(kind, member, name, number, meaning) \
  {name, number, field_kind::kind::kKind, false},
#define AE_EVENT(Struct, name, number, event_class, schema, ...) \
  constexpr auto k##Struct = std::to_array<Field>({__VA_ARGS__});
#include "log/define_events.h"

constexpr auto kKinds = std::to_array<EventKind>({
#define AE_EVENT(Struct, name, number, event_class, schema, ...) \
  {EventType::name, #name, EventClass::event_class, schema, k##Struct},
#include "log/define_events.h"
});

}  // namespace

std::span<const EventKind> event_kinds() { return kKinds; }

}  // namespace ae

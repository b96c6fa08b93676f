// The event table as constant data.
#include <algorithm>
#include <array>
#include <string_view>

#include "log/events.h"
#include "log/field_names.h"

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

constexpr bool is_field_name(std::string_view name) {
  return std::ranges::any_of(kKinds, [name](const EventKind& kind) {
    return std::ranges::any_of(kind.fields,
                               [name](const Field& field) { return field.name == name; });
  });
}
#define AE_FIELD_NAME(constant, name) \
  static_assert(is_field_name(field::constant), "no event has a field of this name");
AE_FIELD_NAMES(AE_FIELD_NAME)
#undef AE_FIELD_NAME

}  // namespace

std::span<const EventKind> event_kinds() { return kKinds; }

}  // namespace ae

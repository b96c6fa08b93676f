#include "log/redacted.h"

#include <algorithm>

#include "base/hash.h"

namespace ae {
namespace {

// As in `Event::salts`.
std::string value_name(const Field& field) {
  return std::string(field.name) + (field.kind == FieldKind::error ? ".message" : "");
}

bool is_erased(const Event& event, const Field& field) {
  const bool error = field.kind == FieldKind::error;
  if (!error && field.kind != FieldKind::value) return false;
  const Value& shown = event.payload[field.name];
  return is_redacted(error ? shown["message"] : shown) &&
         event.salts.find(value_name(field)) == nullptr;
}

}  // namespace

bool is_redacted(const Value& value) {
  const bool left = value.size() == 2 && value["left"].is_object();
  return value.is_object() && (value.size() == 1 || left) && hash_from_hex(value.text("$redacted"));
}

bool is_erased(const Event& event, std::string_view field) {
  const EventKind* kind = event_kind(event.type);
  if (kind == nullptr) return false;
  const auto known = std::ranges::find(kind->fields, field, &Field::name);
  return known != kind->fields.end() && is_erased(event, *known);
}

EventBody body_of(const Event& event) {
  const EventKind* kind = event_kind(event.type);
  const bool made = std::holds_alternative<UnknownEvent>(event.body) && kind != nullptr;
  if (!made) return event.body;
  auto body = event_from_json(*kind, event.payload);
  if (!body) return event.body;
  std::visit(
      [&event]<class E>(E& typed) {
        if constexpr (!std::is_same_v<E, UnknownEvent>) {
          visit_fields(typed, [&event](auto field, auto& member) {
            if constexpr (field.kind() == FieldKind::value) {
              member.erased = is_erased(event, field.name());
            }
          });
        }
      },
      *body);
  return *std::move(body);
}

std::vector<std::string> erased_values(const Event& event) {
  std::vector<std::string> erased;
  const EventKind* kind = event_kind(event.type);
  if (kind == nullptr) return erased;
  for (const Field& field : kind->fields) {
    if (is_erased(event, field)) erased.push_back(value_name(field));
  }
  return erased;
}

}  // namespace ae

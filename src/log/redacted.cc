#include "log/redacted.h"

#include <fmt/core.h>

#include <utility>

#include "base/hash.h"

namespace ae {
namespace {

// Calls visit(field, its name in `Event::salts`) for each erased value.
template <class Visit>
void visit_erased(const Event& event, Visit&& visit) {
  const auto visit_body = [&](const auto& body) {
    visit_fields(body, [&](auto field, const auto& member) {
      if constexpr (field.kind() == FieldKind::value) {
        if (member.erased) visit(field.name(), std::string(field.name()));
      } else if constexpr (field.kind() == FieldKind::error) {
        const bool erased = is_present(field, member) && content_of(member).message.erased;
        if (erased) visit(field.name(), fmt::format("{}.message", field.name()));
      }
    });
  };
  // For an event of a newer schema, where only the payload is known.
  const auto visit_unknown = [&](const UnknownEvent& body, const EventKind& kind) {
    for (const Field& field : kind.fields) {
      const bool erased = field.kind == FieldKind::value && is_redacted(body.payload[field.name]) &&
                          salt_of(event, field.name) == nullptr;
      if (erased) visit(field.name, std::string(field.name));
    }
  };
  std::visit(
      [&]<class Body>(const Body& body) {
        if constexpr (!std::is_same_v<Body, UnknownEvent>) {
          visit_body(body);
        } else if (const EventKind* kind = event_kind(event.type); kind != nullptr) {
          visit_unknown(body, *kind);
        }
      },
      event.body);
}

}  // namespace

bool is_redacted(const Value& value) {
  const bool has_retained = value.size() == 2 && value["left"].is_object();
  return value.is_object() && (value.size() == 1 || has_retained) &&
         hash_from_hex(value.text("$redacted"));
}

std::vector<std::string> erased_fields(const Event& event) {
  std::vector<std::string> erased;
  visit_erased(event,
               [&](std::string_view, std::string name) { erased.push_back(std::move(name)); });
  return erased;
}

}  // namespace ae

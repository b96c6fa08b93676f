// Event: looks up event kinds, checks payloads against the table, builds envelopes.
#include "log/event.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"
#include "log/field_json.h"
#include "log/field_names.h"
#include "log/redacted.h"

namespace ae {
namespace {

// By number; nullptr = no such kind.
const std::array<const EventKind*, 256>& kinds_by_number() {
  static const auto table = [] {
    std::array<const EventKind*, 256> kinds{};
    for (const EventKind& kind : event_kinds()) {
      kinds[static_cast<std::size_t>(kind.type)] = &kind;
    }
    return kinds;
  }();
  return table;
}

bool is_hex(const Value& value, std::size_t digits) {
  if (!value.is_string() || value.as_string().size() != digits) return false;
  bool good = true;  // no early exit: nearly all are valid, so a full scan is faster
  for (const char c : value.as_string()) {
    good &= static_cast<unsigned char>(c - '0') < 10 || static_cast<unsigned char>(c - 'a') < 6;
  }
  return good;
}

// Accepts only the form that to_text writes: 27 characters in upper case.
bool is_instant(const Value& value) {
  if (!value.is_string()) return false;
  const std::string& text = value.as_string();
  return text.size() == 27 && text[10] == 'T' && text[26] == 'Z' && instant_from_text(text);
}

bool is_error(const Value& value) {
  const Value& message = value["message"];
  return value.is_object() && value.size() == 2 && code_in(value).is_string() &&
         (message.is_string() || is_redacted(message));
}

}  // namespace

bool has_kind(FieldKind kind, const Value& value) {
  switch (kind) {
    case FieldKind::text:
    case FieldKind::word:
    case FieldKind::external_key:
      return value.is_string();
    case FieldKind::id8:
      return is_hex(value, 16);
    case FieldKind::hash32:
      return is_hex(value, 64);
    case FieldKind::uuid:
      return value.is_string() && uuid_from_text(value.as_string());
    case FieldKind::integer:
      return value.is_integer();
    case FieldKind::boolean:
      return value.is_bool();
    case FieldKind::instant:
      return is_instant(value);
    case FieldKind::json:
    case FieldKind::value:
      return true;
    case FieldKind::error:
      return is_error(value);
  }
  return false;
}

namespace {

std::string_view expected_json(FieldKind kind) {
  switch (kind) {
    case FieldKind::text:
    case FieldKind::word:
    case FieldKind::external_key:
      return "a text";
    case FieldKind::id8:
      return "16 lower-case hex digits";
    case FieldKind::hash32:
      return "64 lower-case hex digits";
    case FieldKind::uuid:
      return "a UUID in lower case";
    case FieldKind::integer:
      return "an integer";
    case FieldKind::boolean:
      return "true or false";
    case FieldKind::instant:
      return "a time like 2025-01-31T09:30:00.000000Z";
    case FieldKind::json:
    case FieldKind::value:
      return "a JSON value";
    case FieldKind::error:
      return "{code, message}, both texts";
  }
  return {};
}

std::unexpected<Error> field_error(std::string_view of, std::string_view field,
                                   std::string_view what) {
  return fail(Code::log_corrupt, "{}.{} {}", of, field, what);
}

}  // namespace

const EventKind* event_kind(EventType type) noexcept {
  return kinds_by_number()[static_cast<std::size_t>(type)];
}

const EventKind* event_kind(std::string_view name) noexcept {
  for (const EventKind& kind : event_kinds()) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

std::string_view event_name(EventType type) noexcept {
  const EventKind* kind = event_kind(type);
  return kind != nullptr ? kind->name : std::string_view();
}

namespace {

std::string_view text_of(const std::string& text) { return text; }
std::string_view text_of(const StepId& id) { return id.text; }
std::string_view text_of(const OptionalMember auto& member) { return text_of(or_empty(member)); }

}  // namespace

std::string_view step_of(const Event& event) noexcept {
  return std::visit(
      [](const auto& body) {
        if constexpr (requires { body.step_id; }) return text_of(body.step_id);
        return std::string_view();
      },
      event.body);
}

std::string_view node_of(const Event& event) noexcept {
  return std::visit(
      [](const auto& body) {
        if constexpr (requires { body.node_id; }) return text_of(body.node_id);
        return std::string_view();
      },
      event.body);
}

const Salt* salt_of(const Event& event, std::string_view field) noexcept {
  const auto salt =
      std::ranges::find_if(event.salts, [field](const Salt& s) { return s.field == field; });
  return salt != event.salts.end() ? &*salt : nullptr;
}

std::string_view event_name(const Event& event) noexcept {
  const auto* const unknown = as<UnknownEvent>(event);
  return unknown != nullptr && !unknown->name.empty() ? unknown->name : event_name(event.type);
}

// Members and fields have the same order, so one pass finds missing fields and unknown members.
Status check_fields(const FieldCheck& check, const Value& json) {
  if (!json.is_object()) return fail(Code::log_corrupt, "{} is not an object", check.of);
  const auto members = json.members();
  auto member = members.begin();
  for (const Field& field : check.fields) {
    const bool present = member != members.end() && member->first == field.name;
    const bool absent = !present || (member->second.is_null() && !accepts_null(field));
    if (!absent && !has_kind(field.kind, member->second)) {
      return field_error(check.of, field.name, fmt::format("is not {}", expected_json(field.kind)));
    }
    if (absent && field.required && !check.partial) {
      return field_error(check.of, field.name, "is missing");
    }
    if (present) ++member;
  }
  if (member != members.end()) {
    return field_error(check.of, member->first, fmt::format("is not a field of {}", check.of));
  }
  return {};
}

Status check_payload(const EventKind& kind, const Value& payload) {
  return check_fields({.of = kind.name, .fields = kind.fields}, payload);
}

namespace {

Value salts_json(const Event& event) {
  std::vector<Member> salts;
  salts.reserve(event.salts.size());
  for (const Salt& salt : event.salts) {
    const auto* const bytes = reinterpret_cast<const char*>(salt.bytes.data());
    salts.emplace_back(salt.field, to_hex({bytes, salt.bytes.size()}));
  }
  return Value::object(std::move(salts));
}

}  // namespace

Value envelope(const JobId& job, const Event& event) {
  std::vector<Member> members;
  members.reserve(11);
  if (event.attempt_id) members.emplace_back(field::attempt_id, event.attempt_id->text);
  members.emplace_back("created_at", to_text(event.created_at));
  members.emplace_back("hash", to_hex(event.hash));
  members.emplace_back("id", to_text(event.id));
  members.emplace_back("job_id", job.text);
  members.emplace_back(field::payload, payload_json(event.body));
  members.emplace_back("prev_hash", to_hex(event.prev_hash));
  if (!event.salts.empty()) members.emplace_back("salts", salts_json(event));
  members.emplace_back("schema", static_cast<int>(event.schema));
  members.emplace_back("seq", event.seq);
  members.emplace_back("type", event_name(event));
  return Value::object(std::move(members));
}

}  // namespace ae

#include "inspect/envelope.h"

#include <fmt/core.h>

#include <utility>

#include "base/hash.h"
#include "log/event_type.h"
#include "log/field_names.h"

namespace ae {

Result<Event> event_from_envelope(const Value& envelope) {
  const std::string_view name = envelope.text("type");
  const Value& seq = envelope["seq"];
  const Value& schema = envelope["schema"];
  const auto created_at = instant_from_text(envelope.text("created_at"));
  const auto id = uuid_from_text(envelope.text("id"));
  const auto hash = hash_from_hex(envelope.text("hash"));
  const auto prev_hash = hash_from_hex(envelope.text("prev_hash"));
  if (name.empty() || !seq.is_integer() || seq.as_int() < 1 || !schema.is_integer() ||
      schema.as_int() < 1 || !created_at || !id || !hash || !prev_hash) {
    return fail(Code::log_corrupt, "an event has no type, seq, schema, time, id or hash");
  }
  const EventKind* const kind = event_kind(name);
  if (kind == nullptr || schema.as_int() > kind->schema) {
    return fail(Code::needs_version, "event {} is a {} of schema {}, which this version lacks",
                seq.as_int(), name.substr(0, 64), schema.as_int());
  }
  auto body = event_from_json(*kind, envelope[field::payload]);
  if (!body) {
    return std::unexpected(
        std::move(body).error().with_context(fmt::format("event {}", seq.as_int())));
  }
  Event event(*std::move(body));
  event.seq = static_cast<std::uint64_t>(seq.as_int());
  event.id = *id;
  event.created_at = *created_at;
  event.prev_hash = *prev_hash;
  event.hash = *hash;
  if (const auto attempt = envelope.text(field::attempt_id); !attempt.empty()) {
    event.attempt_id = AttemptId(attempt);
  }
  event.type = kind->type;
  event.schema = static_cast<std::uint8_t>(schema.as_int());
  return event;
}

}  // namespace ae

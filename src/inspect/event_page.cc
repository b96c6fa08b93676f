#include "inspect/event_page.h"

#include <algorithm>
#include <utility>

#include "engine/state/view_values.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

EventClass class_of(const Event& event) {
  const EventKind* kind = event_kind(event.type);
  return kind ? kind->event_class : EventClass::narrative;
}

Value slim(const Value& value) {
  const std::size_t bytes = canonical(value).size();
  if (bytes <= kSlimBytes) return value;
  return Value::object({{"$cut", number(bytes)}});
}

Value slim_envelope(const Value& envelope) {
  std::vector<Member> members;
  for (const auto& [name, value] : envelope.members()) {
    if (name == "salts") continue;
    if (name != field::payload) {
      members.emplace_back(name, value);
      continue;
    }
    std::vector<Member> payload;
    for (const auto& [field, content] : value.members()) payload.emplace_back(field, slim(content));
    members.emplace_back(name, Value::object(std::move(payload)));
  }
  return Value::object(std::move(members));
}

}  // namespace

bool EventPage::selects(const Event& event) const {
  if (query_.of_class && class_of(event) != *query_.of_class) return false;
  if (!query_.type.empty() && event_name(event) != query_.type) return false;
  return query_.step.empty() || step_of(event) == query_.step;
}

bool EventPage::add(const Event& event) {
  if (has_next()) return false;
  const bool is_before = event.seq <= query_.after;
  const bool is_beyond = query_.before && event.seq >= *query_.before;
  const bool is_bounded = query_.is_filtered() && !query_.effects;
  if (!is_before && !is_beyond && is_bounded && looked_at_++ == scanned_max_) {
    next_ = scanned_;
    return false;
  }
  scanned_ = event.seq;
  const std::string_view kind = query_.effects ? kinds_.kind_of(event) : "";
  if (is_before) return !query_.descending;
  if (is_beyond) return query_.descending;
  if (query_.effects && kind.empty()) return true;
  if (!selects(event)) return true;
  Value shown = envelope(job_, event);
  if (!query_.text.empty() && !canonical(shown).contains(query_.text)) return true;
  if (events_.size() == query_.limit) {
    next_ = static_cast<std::uint64_t>(events_.back()["seq"].as_int());
    return false;
  }
  if (query_.slim) shown = slim_envelope(shown);
  events_.push_back(query_.effects ? shown.with(field::kind, kind) : std::move(shown));
  return true;
}

Value EventPage::take(std::uint64_t last_seq, bool ended) && {
  Value total;
  if (!query_.is_filtered()) {
    const std::uint64_t end = std::min(query_.before.value_or(last_seq + 1), last_seq + 1);
    total = number(end > query_.after + 1 ? end - query_.after - 1 : 0);
  }
  Value next = has_next() ? number(next_) : Value();
  return Value::object({{"ended", ended},
                        {"events", Value::array(std::move(events_))},
                        {"last_seq", number(last_seq)},
                        {"next", std::move(next)},
                        {"total", std::move(total)}});
}

}  // namespace ae::engine

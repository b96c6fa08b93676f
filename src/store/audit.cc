#include "store/audit.h"

#include <fmt/core.h>

#include <charconv>
#include <utility>

#include "base/counted.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::store {
namespace {

Hash hash_of(const Hash& prev, std::string_view body) {
  std::string text = "aetheris.audit.v1";
  text.append(reinterpret_cast<const char*>(prev.bytes.data()), prev.bytes.size());
  text += body;
  return sha256(text);
}

}  // namespace

std::string to_text(const AuditHead& head) {
  return fmt::format("{} {}", head.seq, to_hex(head.hash));
}

AuditHead audit_head_from_text(std::string_view text) {
  AuditHead head;
  const std::string_view number = text.substr(0, text.find(' '));
  const auto read = std::from_chars(number.data(), number.data() + number.size(), head.seq);
  const auto hash =
      number.size() < text.size() ? hash_from_hex(text.substr(number.size() + 1)) : std::nullopt;
  if (read.ec != std::errc() || read.ptr != number.data() + number.size() || !hash) {
    return {.seq = 0, .hash = sha256(text)};
  }
  head.hash = *hash;
  return head;
}

AuditRow chain_entry(const AuditHead& head, const AuditEntry& entry) {
  AuditRow row{.seq = head.seq + 1};
  row.body = canonical(Value::object({{"act", entry.act},
                                      {field::at, to_text(entry.at)},
                                      {field::by, entry.by},
                                      {field::detail, entry.detail},
                                      {"job", entry.job.text},
                                      {"seq", row.seq}}));
  row.hash = hash_of(head.hash, row.body);
  return row;
}

AuditVerification verify_audit_log(const AuditLog& log) {
  AuditHead at;
  const auto found = [&](const char* head, std::string detail) {
    return AuditVerification{
        .ok = false, .head = head, .detail = std::move(detail), .entries = at.seq};
  };
  for (const AuditRow& row : log.rows) {
    if (row.seq != at.seq + 1)
      return found("altered", fmt::format("an entry is missing behind entry {}", at.seq));
    if (row.hash != hash_of(at.hash, row.body)) {
      return found("altered",
                   fmt::format("the entry behind entry {} is not what was written", at.seq));
    }
    at = {row.seq, row.hash};
  }
  if (log.head.seq > at.seq) {
    return found("truncated",
                 fmt::format("it ends at entry {}, and had come to {}", at.seq, log.head.seq));
  }
  if (log.head != at) return found("altered", "its end differs from the recorded end");
  return {.ok = true, .head = "intact", .detail = counted(at.seq, "entry"), .entries = at.seq};
}

Value audit_view(const AuditRow& row, const Hash& prev) {
  // A body can contain a part of a request, so it can be nested deeper than one.
  auto body = parse_json(row.body, {.depth_max = 128});
  Value shown = body && body->is_object()
                    ? *std::move(body)
                    : Value::object({{"unreadable", to_hex(sha256(row.body))}});
  return shown.with("hash", to_hex(row.hash)).with("prev_hash", to_hex(prev)).with("seq", row.seq);
}

}  // namespace ae::store

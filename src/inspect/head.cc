// Signed heads: the stored form.
#include "inspect/head.h"

#include <fmt/core.h>

#include "json/json.h"

namespace ae::engine {
namespace {

Value unsigned_form(const Head& head) {
  return Value::object({{"count", head.count},
                        {"hash", to_hex(head.hash)},
                        {"job", head.job.text},
                        {"key_id", head.key_id},
                        {"time", to_text(head.time)},
                        {"v", 1}});
}

std::string message(const Head& head) {
  return fmt::format("aetheris.head.v1\n{}", canonical(unsigned_form(head)));
}

}  // namespace

bool Head::signed_by(const PublicKey& key) const {
  return key.id() == key_id && verify_signature(key, message(*this), signature);
}

std::string signed_head(const SigningKey& key, const JobId& job, std::uint64_t count,
                        const Hash& hash, Instant time) {
  const Head head{.job = job,
                  .count = count,
                  .hash = hash,
                  .time = time,
                  .key_id = key.public_key().id(),
                  .signature = {}};
  return canonical(unsigned_form(head).with("signature", to_hex(key.sign(message(head)))));
}

Result<Head> head_from_text(std::string_view text) {
  const auto damaged = [] { return fail(Code::log_corrupt, "the signed head is damaged"); };
  const auto value = parse_json(text);
  if (!value || !value->is_object()) return damaged();
  const Value& v = *value;
  const auto hash = hash_from_hex(v.text("hash"));
  const auto time = instant_from_text(v.text("time"));
  const auto signature = from_hex(v.text("signature"));
  if (!hash || !time || !signature || !v["count"].is_integer() || v["count"].as_int() < 1) {
    return damaged();
  }
  Head head{.job = JobId(std::string(v.text("job"))),
            .count = static_cast<std::uint64_t>(v["count"].as_int()),
            .hash = *hash,
            .time = *time,
            .key_id = std::string(v.text("key_id")),
            .signature = *signature};
  // Only the canonical form is accepted, so that no byte can be changed undetected.
  if (canonical(unsigned_form(head).with("signature", to_hex(head.signature))) != text) {
    return damaged();
  }
  return head;
}

}  // namespace ae::engine

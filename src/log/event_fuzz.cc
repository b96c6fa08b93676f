// Event codec fuzzer: `type, payload`. A payload that the table accepts is sealed, opened
// unchanged, and remains a valid log after redaction; any other payload is rejected cleanly.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "json/json.h"
#include "log/seal.h"

namespace {

const ae::JobId kJob("job-1");

// The payload as sealed: optional members that are null are absent.
ae::Value without_absent(const ae::EventKind& kind, const ae::Value& payload) {
  std::vector<ae::Member> members;
  for (const ae::Field& field : kind.fields) {
    const ae::Value* const value = payload.find(field.name);
    if (value == nullptr || (value->is_null() && !ae::accepts_null(field))) continue;
    members.emplace_back(field.name, *value);
  }
  return ae::Value::object(std::move(members));
}

// A redacted value reads as {"$redacted": …}: skip inputs that have this form.
bool looks_redacted(const ae::EventKind& kind, const ae::Value& payload) {
  for (const ae::Field& field : kind.fields) {
    const ae::Value& value = payload[field.name];
    if (field.kind == ae::FieldKind::value && value.find("$redacted") != nullptr) return true;
    if (field.kind == ae::FieldKind::error && !value["message"].is_string()) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto kinds = ae::event_kinds();
  const ae::EventKind& kind = kinds[data[0] % kinds.size()];
  const bool uses_blobs = data[0] >= 128;
  const auto payload = ae::parse_json({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!payload || !ae::check_payload(kind, *payload) || looks_redacted(kind, *payload)) return 0;

  const ae::Hash prev = ae::sha256("before");
  const ae::SealInput input{.job = kJob,
                            .first_seq = 7,
                            .prev_hash = prev,
                            .first_id = ae::uuid_v7(1'700'000'000'000, 7, 1000),
                            .created_at = {1'700'000'000'123'456},
                            .attempt_id = ae::AttemptId("attempt"),
                            .salt_seed_a = 11,
                            .salt_seed_b = 7};
  const ae::SealLimits limits =
      uses_blobs ? ae::SealLimits{.value_inline_max = 0, .json_inline_max = 0} : ae::SealLimits{};
  const std::vector<ae::EventBody> drafts(2, ae::event_of(kind.type, *payload));
  const auto sealed = ae::seal(input, drafts, limits);
  AE_CHECK(sealed.has_value(), ae::canonical(*payload));

  std::map<ae::Hash, std::string> blobs;
  for (const ae::Blob& blob : sealed->blobs) blobs[blob.hash] = blob.bytes;
  const ae::BlobSource source = [&](const ae::Hash& hash) -> ae::Result<std::string> {
    const auto found = blobs.find(hash);
    if (found == blobs.end()) return ae::fail(ae::Code::log_corrupt, "no such blob");
    return found->second;
  };
  const auto opened = ae::open(kJob, sealed->bytes, prev, source);
  AE_CHECK(opened.has_value(), ae::canonical(*payload));
  AE_CHECK(opened->head == sealed->head && opened->events.size() == 2);
  const ae::Value expected = without_absent(kind, *payload);
  for (std::size_t i = 0; i < 2; ++i) {
    const ae::Value shown = ae::payload_json(opened->events[i].body);
    AE_CHECK(shown == expected, ae::canonical(shown));
    AE_CHECK(opened->events[i].body == drafts[i], ae::canonical(shown));
    AE_CHECK(ae::envelope(kJob, opened->events[i]) == ae::envelope(kJob, sealed->events[i]));
  }
  const auto bare = ae::redact(kJob, sealed->bytes, prev, source,
                               [](const ae::Event&, std::string_view) { return true; });
  AE_CHECK(bare.has_value());
  const auto again = ae::open(kJob, *bare, prev, source);
  AE_CHECK(again.has_value() && again->head == sealed->head, ae::canonical(*payload));
  AE_CHECK(ae::check_payload(kind, ae::payload_json(again->events[0].body)).has_value());
  return 0;
}

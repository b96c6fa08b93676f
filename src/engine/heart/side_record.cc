// Checksums of side records.
#include "engine/heart/side_record.h"

#include <fmt/core.h>

#include <vector>

#include "base/hash.h"
#include "json/json.h"

namespace ae::engine {
namespace {

constexpr std::string_view kName = "checksum";
constexpr std::size_t kDigits = 16;
// The records were within their limits when they were written. A result may nest deeper
// than JSON from a client.
constexpr JsonLimits kLimits{
    .bytes_max = ~std::size_t{0}, .depth_max = kJsonDepthMax, .big_integers = true};

std::string checksum(std::string_view location, const Value& record) {
  std::string text = "aetheris.beside.v1";
  text += '\0';
  text += location;
  text += '\0';
  text += canonical(record);
  return to_hex(sha256(text)).substr(0, kDigits);
}

}  // namespace

std::string effect_location(const JobId& job, const InvocationId& invocation,
                            std::uint32_t try_no) {
  return fmt::format("effect/{}/{}/{}", job.text, invocation.text, try_no);
}
std::string ledger_location(const JobId& job, const InvocationId& invocation, std::uint32_t try_no,
                            std::string_view state) {
  return fmt::format("ledger/{}/{}/{}/{}", job.text, invocation.text, try_no, state);
}
std::string inbox_location(const JobId& job, std::string_view id) {
  return fmt::format("inbox/{}/{}", job.text, id);
}

Value with_checksum(std::string_view location, const Value& record) {
  return record.with(kName, checksum(location, record));
}

Result<Value> read_side_record(std::string_view location, std::string_view text) {
  auto record = parse_json(text, kLimits);
  if (!record || !record->is_object()) {
    return fail(Code::log_corrupt, "the record at {} is not a JSON object", location);
  }
  std::vector<Member> members;
  for (const Member& member : record->members()) {
    if (member.first != kName) members.push_back(member);
  }
  Value bare = Value::object(std::move(members));
  if (canonical(*record) != text || record->text(kName) != checksum(location, bare)) {
    return fail(Code::log_corrupt, "the record at {} is not what was written there", location);
  }
  return bare;
}

}  // namespace ae::engine

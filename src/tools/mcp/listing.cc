#include "tools/mcp/listing.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "core/json.h"

namespace ae::tools::mcp {

bool is_offered(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && std::ranges::all_of(name, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

std::string digest_of(const Value& pinned) {
  std::vector<Member> members;
  for (const auto& member : pinned.members()) {
    if (member.first != "digest") members.push_back(member);
  }
  return to_hex(sha256(canonical(Value::object(std::move(members)))));
}

Result<Value> pinned(const Value& listed) {
  if (!listed["name"].is_string()) return fail(Code::input_invalid, "a tool without a name");
  std::vector<Member> members;
  for (const char* key : {"name", "title", "description"}) {
    if (listed[key].is_string()) members.emplace_back(key, listed[key]);
  }
  for (const char* key : {"inputSchema", "outputSchema", "annotations"}) {
    if (listed[key].is_object()) members.emplace_back(key, listed[key]);
  }
  Value tool = Value::object(std::move(members));
  if (tool.find("inputSchema") == nullptr) {
    return fail(Code::input_invalid, "a tool without an inputSchema");
  }
  if (canonical_exceeds(tool, kToolMax)) {
    return fail(Code::input_invalid, "it says more than 256 KiB of itself");
  }
  return tool.with("digest", digest_of(tool));
}

}  // namespace ae::tools::mcp

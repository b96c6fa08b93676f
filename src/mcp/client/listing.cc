#include "mcp/client/listing.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "net/http_header.h"

namespace ae::mcp::client {
namespace {

bool is_valid_header(const Value& property, std::set<std::string>& names) {
  const Value& header = property["x-mcp-header"];
  if (!header.is_string() || !net::is_header_name(header.as_string())) return false;
  const std::string_view type = property.text("type");
  if (type != "string" && type != "integer" && type != "boolean") return false;
  std::string name = header.as_string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return names.insert(std::move(name)).second;
}

bool has_valid_header_mirrors(const Value& schema, std::size_t depth,
                              std::set<std::string>& names) {
  if (depth > kMirrorDepthMax || !schema["properties"].is_object()) return true;
  return std::ranges::all_of(schema["properties"].members(), [&](const Member& member) {
    const Value& property = member.second;
    if (property.find("x-mcp-header") != nullptr && !is_valid_header(property, names)) return false;
    return has_valid_header_mirrors(property, depth + 1, names);
  });
}

}  // namespace

bool is_valid_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && std::ranges::all_of(name, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

bool has_valid_header_mirrors(const Value& schema) {
  std::set<std::string> names;
  return has_valid_header_mirrors(schema, 0, names);
}

std::string digest_of(const Value& pinned) {
  std::vector<Member> members;
  for (const auto& member : pinned.members()) {
    if (member.first != "digest") members.push_back(member);
  }
  return to_hex(sha256(canonical(Value::object(std::move(members)))));
}

Result<Value> pin_tool(const Value& listed) {
  if (!listed["name"].is_string()) return fail(Code::input_invalid, "a tool without a name");
  std::vector<Member> members;
  for (const char* key : {"name", "title", "description"}) {
    if (listed[key].is_string()) members.emplace_back(key, listed[key]);
  }
  for (const char* key : {"inputSchema", "outputSchema", "annotations"}) {
    if (listed[key].is_object()) members.emplace_back(key, listed[key]);
  }
  if (listed["execution"].text("taskSupport") == "required") {
    members.emplace_back("execution", Value::object({{"taskSupport", "required"}}));
  }
  Value tool = Value::object(std::move(members));
  if (tool.find("inputSchema") == nullptr) {
    return fail(Code::input_invalid, "a tool without an inputSchema");
  }
  if (canonical_exceeds(tool, kToolMax)) {
    return fail(Code::input_invalid, "its definition is larger than 256 KiB");
  }
  return tool.with("digest", digest_of(tool));
}

}  // namespace ae::mcp::client

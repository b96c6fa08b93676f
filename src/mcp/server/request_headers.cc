#include "mcp/server/request_headers.h"

#include <fmt/core.h>

#include <array>
#include <string_view>
#include <utility>

#include "mcp/protocol/header.h"
#include "mcp/protocol/revision.h"

namespace ae::mcp {
namespace {

struct NamedMethod {
  std::string_view method, param;
};
constexpr auto kNamedMethods = std::to_array<NamedMethod>({{"tools/call", "name"},
                                                           {"prompts/get", "name"},
                                                           {"resources/read", "uri"},
                                                           {"tasks/get", "taskId"},
                                                           {"tasks/update", "taskId"},
                                                           {"tasks/cancel", "taskId"}});

// The value of Mcp-Name for a request with this method and params; nullopt: it has no such header.
std::optional<std::string> mcp_name_of(std::string_view method, const Value& params) {
  for (const NamedMethod& named : kNamedMethods) {
    if (named.method != method) continue;
    const Value& name = params[named.param];
    return name.is_string() ? std::optional(name.as_string()) : std::nullopt;
  }
  return std::nullopt;
}

std::unexpected<RpcError> header_mismatch(std::string what, const Message& request) {
  return std::unexpected(
      RpcError{.code = kHeaderMismatch, .message = std::move(what), .id = request.id});
}

// What the header has instead.
std::string instead(const std::optional<std::string>& value) {
  return value ? fmt::format(", not \"{}\"", clip_text(*value)) : "";
}

}  // namespace

std::expected<void, RpcError> check_headers(const RequestHeaders& headers, const Message& request) {
  if (headers.is_duplicated) {
    return header_mismatch("duplicate MCP header in the request", request);
  }
  const std::string_view version = request.params["_meta"].text(kProtocolVersion);
  if (!headers.version || *headers.version != version) {
    return header_mismatch(fmt::format("the header MCP-Protocol-Version must match _meta: \"{}\"{}",
                                       clip_text(version), instead(headers.version)),
                           request);
  }
  if (!headers.method || *headers.method != request.method) {
    return header_mismatch(fmt::format("the header Mcp-Method must match the body: \"{}\"{}",
                                       clip_text(request.method), instead(headers.method)),
                           request);
  }
  const auto name = mcp_name_of(request.method, request.params);
  if (!name) return {};
  const auto header_name = headers.name ? decode_header_value(*headers.name) : std::nullopt;
  if (!header_name || *header_name != *name) {
    return header_mismatch(fmt::format("the header Mcp-Name must match the body: \"{}\"{}",
                                       clip_text(*name), instead(headers.name)),
                           request);
  }
  return {};
}

}  // namespace ae::mcp

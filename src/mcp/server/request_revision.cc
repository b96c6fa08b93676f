#include "mcp/server/request_revision.h"

#include <fmt/core.h>

#include <string>
#include <utility>

namespace ae::mcp {
namespace {

std::unexpected<RpcError> reject(const Message& message, int code, std::string what,
                                 Value data = {}) {
  return std::unexpected(RpcError{code, std::move(what), std::move(data), message.id});
}

std::unexpected<RpcError> unsupported(const Message& message, const std::string& requested) {
  return reject(
      message, kUnsupportedVersion, "Unsupported protocol version",
      Value::object({{"requested", clip_text(requested)}, {"supported", all_revisions()}}));
}

}  // namespace

std::expected<Revision, RpcError> revision_of(const Message& message, const RequestOrigin& origin) {
  Revision revision = kAssumedRevision;
  const auto& headers = origin.headers;
  const Value& meta = message.params["_meta"];
  const Value* const version = meta.find(kProtocolVersion);
  const bool is_request = message.kind == Message::Kind::request;
  if (headers && headers->version) {
    const auto declared = revision_from_text(*headers->version);
    // A client that is about to negotiate a revision has none yet.
    const bool agrees = message.method == "initialize" && version == nullptr;
    if (!declared && !agrees) return unsupported(message, *headers->version);
    if (declared) revision = *declared;
  } else if (origin.negotiated) {
    revision = *origin.negotiated;
  }
  if (version == nullptr && is_modern(revision) && is_request && message.method != "initialize") {
    return reject(message, kInvalidParams,
                  fmt::format("\"_meta\" must contain \"{}\" and \"{}\"", kProtocolVersion,
                              kClientCapabilities));
  }
  if (version == nullptr || !is_request) {
    return is_request && is_modern(revision) ? kNewestLegacy : revision;
  }
  if (!version->is_string()) {
    return reject(message, kInvalidParams,
                  fmt::format("\"{}\" must be a string", kProtocolVersion));
  }
  if (headers) {
    if (auto same = check_headers(*headers, message); !same) return std::unexpected(same.error());
  }
  const auto declared = revision_from_text(version->as_string());
  if (!declared || !is_modern(*declared)) return unsupported(message, version->as_string());
  if (!meta[kClientCapabilities].is_object()) {
    return reject(message, kInvalidParams,
                  fmt::format("\"_meta\" must contain \"{}\"", kClientCapabilities));
  }
  return *declared;
}

std::optional<Revision> revision_of_batch(const RequestOrigin& origin) {
  std::optional<Revision> revision = origin.negotiated;
  if (origin.headers) {
    const auto& version = origin.headers->version;
    revision = version ? revision_from_text(*version) : kAssumedRevision;
  }
  return revision && *revision <= Revision::r2025_03_26 ? revision : std::nullopt;
}

}  // namespace ae::mcp

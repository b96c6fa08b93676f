// RequestRevision: which revision a message of a client uses, and whether it declares what that
// revision requires. Threads: pure functions.
#pragma once

#include <expected>
#include <optional>

#include "mcp/protocol/message.h"
#include "mcp/protocol/revision.h"
#include "mcp/server/request_headers.h"

namespace ae::mcp {

// What the transport knows about a message.
struct RequestOrigin {
  const std::optional<RequestHeaders>& headers;  // borrowed; nullopt: it came by stdio
  std::optional<Revision> negotiated;            // stdio: by the handshake
};

// Fails with kUnsupportedVersion, kInvalidParams, kHeaderMismatch.
std::expected<Revision, RpcError> revision_of(const Message& message, const RequestOrigin& origin);

// Whether a batch of this origin is allowed: only revision 2025-03-26 defines batches; its
// predecessor has them by JSON-RPC, later ones do not. The messages of a batch have its revision.
// nullopt: it is not.
std::optional<Revision> revision_of_batch(const RequestOrigin& origin);

}  // namespace ae::mcp

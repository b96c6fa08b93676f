// Revision: the supported revisions of the Model Context Protocol, and the names that they use.
//
// Up to 2025-11-25 the client and the server do a handshake (initialize) that applies to the whole
// session; these revisions are called legacy. From 2026-07-28 every request is self-contained
// (`_meta`); these are called modern. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "json/value.h"

namespace ae::mcp {

enum class Revision : std::uint8_t {
  r2024_11_05,
  r2025_03_26,
  r2025_06_18,
  r2025_11_25,
  r2026_07_28
};

constexpr Revision kNewest = Revision::r2026_07_28;
constexpr Revision kNewestLegacy = Revision::r2025_11_25;
// Of an HTTP client without the header MCP-Protocol-Version, which the next revision introduced.
constexpr Revision kAssumedRevision = Revision::r2025_03_26;

std::string_view to_text(Revision revision);
std::optional<Revision> revision_from_text(std::string_view text);
constexpr bool is_modern(Revision revision) { return revision >= Revision::r2026_07_28; }
// All of them, newest first.
Value all_revisions();

// Keys of `_meta`.
constexpr std::string_view kProtocolVersion = "io.modelcontextprotocol/protocolVersion";
constexpr std::string_view kClientInfo = "io.modelcontextprotocol/clientInfo";
constexpr std::string_view kClientCapabilities = "io.modelcontextprotocol/clientCapabilities";
constexpr std::string_view kServerInfo = "io.modelcontextprotocol/serverInfo";
constexpr std::string_view kRelatedTask = "io.modelcontextprotocol/related-task";
// The extension that turns a long call into a task, whose result can be fetched later.
constexpr std::string_view kTasks = "io.modelcontextprotocol/tasks";

}  // namespace ae::mcp

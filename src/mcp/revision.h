// Revision: the revisions of the Model Context Protocol that we speak, and in which words each says what it is.
//
// Until 2025-11-25 a client and a server shake hands (initialize) and what they said holds from then on; those revisions
// are called legacy. From 2026-07-28 on each request says everything itself (in `_meta`); that is called modern.
// Threads: pure functions.
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

constexpr Revision kNewestLegacy = Revision::r2025_11_25;
// Over HTTP a client that says nothing: the header MCP-Protocol-Version came with the next one.
constexpr Revision kAssumedRevision = Revision::r2025_03_26;

std::string_view to_text(Revision revision);
std::optional<Revision> revision_from_text(std::string_view text);
constexpr bool is_modern(Revision revision) { return revision >= Revision::r2026_07_28; }
// All of them, the newest first.
Value all_revisions();

// Keys of `_meta`.
constexpr std::string_view kProtocolVersion = "io.modelcontextprotocol/protocolVersion";
constexpr std::string_view kClientCapabilities = "io.modelcontextprotocol/clientCapabilities";
constexpr std::string_view kServerInfo = "io.modelcontextprotocol/serverInfo";
constexpr std::string_view kRelatedTask = "io.modelcontextprotocol/related-task";
// The extension by which a long call is a task that can be asked for later.
constexpr std::string_view kTasks = "io.modelcontextprotocol/tasks";

}  // namespace ae::mcp

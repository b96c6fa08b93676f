#include "mcp/protocol/revision.h"

#include <iterator>
#include <vector>

namespace ae::mcp {
namespace {

// In the order of Revision.
constexpr std::string_view kTexts[] = {"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25",
                                       "2026-07-28"};

}  // namespace

std::string_view to_text(Revision revision) { return kTexts[static_cast<std::size_t>(revision)]; }

std::optional<Revision> revision_from_text(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kTexts); ++i) {
    if (kTexts[i] == text) return static_cast<Revision>(i);
  }
  return std::nullopt;
}

Value all_revisions() {
  std::vector<Value> texts;
  for (std::size_t i = std::size(kTexts); i-- > 0;) texts.emplace_back(kTexts[i]);
  return Value::array(std::move(texts));
}

}  // namespace ae::mcp

#include "mcp/client/tool_diff.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "json/json.h"
#include "mcp/client/classify_response.h"
#include "tools/output.h"

namespace ae::mcp::client {
namespace {

constexpr std::size_t kContextBytes = 40;  // bytes of equal text before a difference

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// At most `most` bytes, beginning at `from`.
std::string excerpt(const std::string& text, std::size_t from, std::size_t most) {
  while (from > 0 && from < text.size() && !starts_character(text[from])) --from;
  std::size_t end = std::min(from + most, text.size());
  while (end > from && end < text.size() && !starts_character(text[end])) --end;
  const std::size_t left = text.size() - end;
  return fmt::format(
      "{}{}{}", from > 0 ? "…" : "",
      tools::printable(std::string_view(text).substr(from, end - from), tools::LineBreaks::escape),
      left > 0 ? fmt::format("… ({} bytes more)", left) : "");
}

std::size_t shown_max(const Value& value) { return value.is_string() ? kTextShown : kValueShown; }

std::string shown(const Value& value) { return excerpt(canonical(value), 0, shown_max(value)); }

class ToolDiff {
 public:
  void add(const std::string& what) {
    if (lines_.size() < kDifferencesMax) {
      lines_.push_back(what);
    } else {
      ++more_;
    }
  }

  // The values at `path` of a tool; nullptr: none.
  void compare(const std::string& path, const Value* before, const Value* now) {
    if (before == nullptr && now == nullptr) return;
    const std::string where =
        truncate_text(tools::printable(path, tools::LineBreaks::escape), kPathShown);
    if (before == nullptr) return add(fmt::format("{}: added: {}", where, shown(*now)));
    if (now == nullptr) return add(fmt::format("{}: removed, was {}", where, shown(*before)));
    if (*before == *now) return;
    if (before->is_object() && now->is_object()) {
      std::set<std::string, std::less<>> keys;
      for (const Member& member : before->members()) keys.insert(member.first);
      for (const Member& member : now->members()) keys.insert(member.first);
      for (const std::string& key : keys) {
        compare(fmt::format("{}/{}", path, key), before->find(key), now->find(key));
      }
      return;
    }
    const std::string was = canonical(*before), is = canonical(*now);
    const std::size_t most = std::max(shown_max(*before), shown_max(*now));
    std::size_t from = 0;
    if (std::max(was.size(), is.size()) > most) {
      const auto same = std::ranges::mismatch(was, is).in1 - was.begin();
      from = std::max(static_cast<std::size_t>(same), kContextBytes) - kContextBytes;
    }
    add(fmt::format("{}: {} -> {}", where, excerpt(was, from, most), excerpt(is, from, most)));
  }

  std::vector<std::string> lines() && {
    if (more_ > 0) lines_.push_back(fmt::format("… and {} more", more_));
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
  std::size_t more_ = 0;
};

}  // namespace

std::vector<std::string> diff_tools(const Value& before, const Value& now) {
  std::map<std::string, std::pair<const Value*, const Value*>> tools;
  for (const Value& tool : before.items()) tools[std::string(tool.text("name"))].first = &tool;
  for (const Value& tool : now.items()) tools[std::string(tool.text("name"))].second = &tool;
  ToolDiff found;
  for (const auto& [name, sides] : tools) {
    const auto& [was, is] = sides;
    if (is == nullptr) {
      found.add(fmt::format("{}: gone", name));
    } else if (was == nullptr) {
      const Value* description = is->find("description");
      const std::string text = description == nullptr ? "" : ": " + shown(*description);
      found.add(fmt::format("{}: new{}", name, text));
    } else {
      for (const char* key :
           {"title", "description", "inputSchema", "outputSchema", "annotations", "execution"}) {
        found.compare(fmt::format("{}: {}", name, key), was->find(key), is->find(key));
      }
    }
  }
  return std::move(found).lines();
}

}  // namespace ae::mcp::client

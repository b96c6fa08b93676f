// UnescapedViews: a text with its JSON escapes decoded, level by level.
//
// A JSON string can spell a word in countless ways (`\/`, `\u0041`), and JSON strings can contain
// JSON, so a search for a word must cover every way in which it may be decoded. Level 0 is the
// text. Each level above has the escapes of the level below decoded and everything else unchanged;
// the text need not be valid JSON. Positions of each level map back to the text. Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ae::tools {

constexpr std::size_t kLevelsMax = 4;  // above level 0

class UnescapedViews {
 public:
  struct Span {
    std::size_t begin = 0, end = 0;
  };
  enum class Continuation : std::uint8_t { nothing, more };  // whether more text follows

  // Borrows `source_text`. REQUIRES: less than 4 GiB.
  UnescapedViews(std::string_view source_text, Continuation continuation);
  UnescapedViews(const UnescapedViews&) = delete;
  UnescapedViews& operator=(const UnescapedViews&) = delete;

  std::size_t levels() const { return views_.size(); }  // above level 0
  std::string_view text(std::size_t level) const {
    return level == 0 ? text_ : std::string_view(views_[level - 1].text);
  }
  // All levels are decoded up to this position of the text; an escape that begins here is
  // incomplete. Without more text to come it is the end.
  std::size_t complete_to() const { return complete_to_; }
  // Maps bytes of a level to the text. An escape is included whole or not at all.
  Span to_source(std::size_t level, Span span) const;
  // The last position at or before `at` that is inside no escape of any level. REQUIRES: at <=
  // complete_to().
  std::size_t boundary_at_or_before(std::size_t at) const;
  // The same position on another level. REQUIRES: at == boundary_at_or_before(at).
  std::size_t to_level(std::size_t level, std::size_t at) const;

 private:
  struct Escape {
    std::uint32_t at, source_at;       // positions on this level and on the level below
    std::uint8_t bytes, source_bytes;  // sizes, likewise
  };
  struct View {
    std::string text;
    std::vector<Escape> escapes;  // sorted by position
    std::size_t complete_to = 0;  // position on the level below
  };
  static View unescape(std::string_view below, Continuation continuation);
  static std::size_t begin_in_source(const View& view, std::size_t at);
  // The last escape that begins before this position of the level below, or nullptr.
  static const Escape* last_escape_before(const View& view, std::size_t below);

  std::string_view text_;
  std::vector<View> views_;
  std::size_t complete_to_;
};

}  // namespace ae::tools

// Layers: a text as whoever reads it as JSON has it, level by level.
//
// A string of JSON may spell a word in ways without number (`\/`, `\u0041`), and JSON stands in strings of JSON: whoever looks
// for a word has to look for it as it will be read. Level 0 is the text; each level above has the escapes of the one below
// read, and all else as it stands, so that the text need be no JSON. Each place of a level is known in the text.
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ae::tools {

constexpr std::size_t kLevelsMax = 4;  // above the text

class UnescapedViews {
 public:
  struct Span {
    std::size_t begin = 0, end = 0;
  };
  enum class Continuation : std::uint8_t { nothing, more };  // the text's end

  // Borrows `whole`. REQUIRES: less than 4 GiB.
  UnescapedViews(std::string_view whole, Continuation continuation);
  UnescapedViews(const UnescapedViews&) = delete;
  UnescapedViews& operator=(const UnescapedViews&) = delete;

  std::size_t levels() const { return views_.size(); }  // above the text
  std::string_view text(std::size_t level) const {
    return level == 0 ? text_ : std::string_view(views_[level - 1].text);
  }
  // Up to here the text is read on all levels; an escape that begins there goes on in what comes behind. Without more to come
  // it is the end.
  std::size_t complete_to() const { return complete_to_; }
  // Where these bytes of a level stand in the text: all of an escape, or nothing of it.
  Span to_source(std::size_t level, Span span) const;
  // The last place up to `at` that is in no escape of any level. REQUIRES: at <= complete_to().
  std::size_t boundary_at_or_before(std::size_t at) const;
  // The same place on another level. REQUIRES: at == between(at).
  std::size_t to_level(std::size_t level, std::size_t at) const;

 private:
  struct Escape {
    std::uint32_t at, source_at;       // where it begins, read and written
    std::uint8_t bytes, source_bytes;  // its size, likewise
  };
  struct View {
    std::string text;
    std::vector<Escape> escapes;  // in their order
    std::size_t complete_to = 0;  // of the level below
  };
  static View unescape(std::string_view below, Continuation continuation);
  static std::size_t begin_in_source(const View& view, std::size_t at);
  // The last escape that begins before this place of the level below, or nullptr.
  static const Escape* last_escape_before(const View& view, std::size_t below);

  std::string_view text_;
  std::vector<View> views_;
  std::size_t complete_to_;
};

}  // namespace ae::tools

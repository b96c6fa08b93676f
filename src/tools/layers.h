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

class Layers {
 public:
  struct Span {
    std::size_t begin = 0, end = 0;
  };
  enum class Behind : std::uint8_t { nothing, more };  // the text's end

  // Borrows `whole`. REQUIRES: less than 4 GiB.
  Layers(std::string_view whole, Behind behind);
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  std::size_t levels() const { return layers_.size(); }  // above the text
  std::string_view text(std::size_t level) const {
    return level == 0 ? text_ : std::string_view(layers_[level - 1].text);
  }
  // Up to here the text is read on all levels; an escape that begins there goes on in what comes behind. Without more to come
  // it is the end.
  std::size_t read_to() const { return read_to_; }
  // Where these bytes of a level stand in the text: all of an escape, or nothing of it.
  Span below(std::size_t level, Span span) const;
  // The last place up to `at` that is in no escape of any level. REQUIRES: at <= read_to().
  std::size_t between(std::size_t at) const;
  // The same place on another level. REQUIRES: at == between(at).
  std::size_t above(std::size_t level, std::size_t at) const;

 private:
  struct Escape {
    std::uint32_t at, below;          // where it begins, read and written
    std::uint8_t bytes, bytes_below;  // its size, likewise
  };
  struct Layer {
    std::string text;
    std::vector<Escape> escapes;  // in their order
    std::size_t read_to = 0;      // of the level below
  };
  static Layer read(std::string_view below, Behind behind);
  static std::size_t begin_below(const Layer& layer, std::size_t at);
  // The last escape that begins before this place of the level below, or nullptr.
  static const Escape* before(const Layer& layer, std::size_t below);

  std::string_view text_;
  std::vector<Layer> layers_;
  std::size_t read_to_;
};

}  // namespace ae::tools

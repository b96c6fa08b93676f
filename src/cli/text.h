// Text for terminals: optional colours, tables, and escaping of untrusted text.
//
// Threads: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ae::cli {

// Escapes control and invisible characters of text from jobs (base/escape_hidden.h). `keep_lines`
// keeps newlines and tabs.
std::string safe(std::string_view text, bool keep_lines = false);
// The same for JSON text, with JSON escapes (\u202e): the parsed value is unchanged.
std::string safe_json(std::string_view json);
// Width in terminal columns: code points; wide ones (CJK, emoji) count two.
std::size_t width_of(std::string_view text);
// At most `columns` wide; a cut text ends with "…". Control characters are escaped first.
std::string cut(std::string_view text, std::size_t columns);
// `text`, padded with blanks to `columns`.
std::string pad(std::string_view text, std::size_t columns);

// Millionths as a decimal without trailing zeros: 1,500,000 is "1.5".
std::string amount_text(std::uint64_t micros);

enum class Tint { none, good, bad, warn, dim, bold, accent };

// Colours text if `on`.
class Paint {
 public:
  explicit Paint(bool on = false) : on_(on) {}
  std::string operator()(Tint tint, std::string_view text) const;
  bool on() const { return on_; }

 private:
  bool on_;
};

Tint status_tint(std::string_view job_status);

// A line of coloured parts, cut at the right edge.
class Line {
 public:
  Line& add(Tint tint, std::string text) {
    pieces_.emplace_back(tint, std::move(text));
    return *this;
  }
  Line& add(std::string text) { return add(Tint::none, std::move(text)); }
  // Without trailing blanks. `width`: 0 = never cut.
  std::string text(const Paint& paint, std::size_t width) const;

 private:
  std::vector<std::pair<Tint, std::string>> pieces_;
};

// Rows under a head. Columns are as wide as needed; the last one is cut at `width` (0 = never), and
// trailing columns that do not fit are omitted.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  struct Cell {
    std::string text;
    Tint tint = Tint::none;
  };
  void row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  std::string text(const Paint& paint, std::size_t width) const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace ae::cli

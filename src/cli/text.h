// Text for terminals: colours that can be off, tables, and data that cannot harm.
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

// What comes from jobs is printed without control and invisible characters (core/visible.h). `keep_lines` leaves newlines
// and tabs.
std::string safe(std::string_view text, bool keep_lines = false);
// The same for JSON text, in JSON's own way (\u202e): it parses to the very same value.
std::string safe_json(std::string_view json);
// Columns on a terminal: code points, wide ones (CJK, emoji) count two.
std::size_t width_of(std::string_view text);
// At most `columns` wide; what is cut ends with "…". A word of control characters is made safe before.
std::string cut(std::string_view text, std::size_t columns);
// `text` and blanks up to `columns`.
std::string pad(std::string_view text, std::size_t columns);

// Millionths as a decimal, as short as it is: 1,500,000 is "1.5".
std::string amount_text(std::uint64_t micros);

enum class Tint { none, good, bad, warn, dim, bold, accent };

// How text is painted, if it is.
class Paint {
 public:
  explicit Paint(bool on = false) : on_(on) {}
  std::string operator()(Tint tint, std::string_view text) const;
  bool on() const { return on_; }

 private:
  bool on_;
};

Tint status_tint(std::string_view job_status);

// A line made of painted pieces that is cut at the right edge.
class Line {
 public:
  Line& add(Tint tint, std::string text) {
    pieces_.emplace_back(tint, std::move(text));
    return *this;
  }
  Line& add(std::string text) { return add(Tint::none, std::move(text)); }
  // Without blanks at its end. `width`: 0 = it is never cut.
  std::string text(const Paint& paint, std::size_t width) const;

 private:
  std::vector<std::pair<Tint, std::string>> pieces_;
};

// Rows under a head, columns as wide as needed, the last one cut at `width` (0 = never); columns at the end that do not
// fit are left out.
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

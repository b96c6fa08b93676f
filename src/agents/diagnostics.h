// Diagnostics: all errors of one agents file, collected while it is checked and sorted at the end.
// Threads: one owner.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"

namespace ae::agents {

constexpr std::size_t kDiagnosticsMax = 1'000;  // per file; the last one: there may be more

// The position of a value in the file, in characters; and of an error inside a string: the byte
// offset in the *decoded* text.
struct SourceLocation {
  std::uint32_t character = 0;
  std::uint32_t inside = 0;
};

class Diagnostics {
 public:
  struct Details {
    std::string path;
    std::string message;
    std::string suggestion = {};
    Code code = Code::plan_invalid;
  };
  void add(SourceLocation at, Details details);
  bool empty() const { return found_.empty(); }
  bool full() const { return found_.size() >= kDiagnosticsMax; }
  std::size_t size() const { return found_.size(); }
  void clear() { found_.clear(); }

  // Sorted by position, with lines and columns (columns count characters). `text`: the file.
  std::vector<Diagnostic> finish(std::string_view file, std::string_view text);

 private:
  struct Found {
    SourceLocation at;
    Details details;
  };
  std::vector<Found> found_;
};

// Suggests the closest of the considered names, if it is close enough; else "".
class ClosestName {
 public:
  explicit ClosestName(std::string_view misspelt);
  void consider(std::string_view known);
  std::string best() { return std::string(best_); }

 private:
  std::string wanted_;
  std::size_t distance_;  // of the best one so far
  std::string best_;
};

// `text` in backquotes, shortened, without control characters: safe for messages.
std::string quote(std::string_view text);
// The first five, each as quote() returns it: "`a`, `b`", with ", …" if there are more.
std::string quote_first_names(const std::vector<std::string>& names);
// "a, b, c"
std::string join_names(std::span<const std::string_view> names);

}  // namespace ae::agents

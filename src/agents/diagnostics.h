// Faults: everything that is wrong with one agents file, collected on the way and put in order at the end.
// Threads: one owner.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"

namespace ae::agents {

constexpr std::size_t kDiagnosticsMax =
    1'000;  // of one file; the last one says that there may be more

// Where a value of the file begins, in characters; and for a fault inside of a string, how many bytes into its
// *decoded* text.
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

  // In the order of the file, with lines and columns (columns count characters). `text` is what the places are in.
  std::vector<Diagnostic> finish(std::string_view file, std::string_view text);

 private:
  struct Found {
    SourceLocation at;
    Details details;
  };
  std::vector<Found> found_;
};

// What a name may have been meant to be: the nearest of `known`, if it is near enough; else "".
class ClosestName {
 public:
  explicit ClosestName(std::string_view misspelt);
  void consider(std::string_view known);
  std::string take() { return std::string(best_); }

 private:
  std::string wanted_;
  std::size_t distance_;  // of the best so far
  std::string best_;
};

// `text` between backquotes, cut and without control characters: fit for a message.
std::string quote(std::string_view text);
// "a, b, c"
std::string join_names(std::initializer_list<std::string_view> details);

}  // namespace ae::agents

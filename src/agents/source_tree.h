// SourceTree: values of the agents file with their positions, and the parsers that create them.
//
// A position counts characters (Unicode code points) from the start of the file; the final
// diagnostics convert it to line and column.
// Threads: values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agents/diagnostics.h"
#include "json/value.h"

namespace ae::agents {

constexpr std::size_t kFileMax = 8u << 20;     // bytes
constexpr std::size_t kDepthMax = 64;          // nested lists and mappings
constexpr std::size_t kValuesMax = 1'000'000;  // scalars, lists and mappings of one file

struct SourceTree {
  enum class Kind : std::uint8_t { scalar, list, mapping };
  struct Key {
    std::string text;
    SourceLocation at;
  };

  Kind kind = Kind::scalar;
  SourceLocation at;
  Value scalar;
  bool is_invalid = false;        // the parser has already reported an error
  std::vector<SourceTree> items;  // of a list, or the values of a mapping
  std::vector<Key> keys;          // of a mapping, parallel to `items`

  bool is_list() const { return kind == Kind::list; }
  bool is_mapping() const { return kind == Kind::mapping; }
  bool is_string() const { return kind == Kind::scalar && scalar.is_string(); }
  const SourceTree* find(std::string_view key) const;
  Value value() const;
};

// For messages: "a list", "a mapping", "a string", ….
std::string_view kind_name(const SourceTree& value);

// Parses a whole file. REQUIRES: `text` is UTF-8 without byte order mark, at most kFileMax. Errors
// go to `diagnostics`; false = there is no tree to check.
bool read_yaml(std::string_view text, Diagnostics& diagnostics, SourceTree& out);
// REQUIRES: parse_json accepted `text`. Reports exceeded limits.
bool read_json(std::string_view text, Diagnostics& diagnostics, SourceTree& out);

// Builds a SourceTree from the events of either parser, within the limits.
class SourceTreeBuilder {
 public:
  explicit SourceTreeBuilder(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  // Each returns false if a limit is exceeded: stop parsing.
  bool open(SourceTree::Kind kind, SourceLocation at);
  bool close();
  bool scalar(Value value, SourceLocation at, bool is_invalid = false);
  // REQUIRES: expects_key().
  void key(std::string text, SourceLocation at);
  // True if the next event must be the key of a mapping.
  bool expects_key() const;
  bool done() const { return done_; }
  SourceTree take() { return std::move(root_); }

 private:
  struct Open {
    SourceTree value;
    bool after_key = false;
  };
  bool add(SourceTree value);
  void drop_duplicate_keys(SourceTree& mapping);

  Diagnostics& diagnostics_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
  bool done_ = false;
  SourceTree root_;
};

}  // namespace ae::agents

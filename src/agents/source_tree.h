// Located: a value of the agents file that knows where it stands, and the two doors that make it.
//
// A place is a count of characters (Unicode code points) from the beginning of the file; faults become line and
// column once, at the end. Threads: values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agents/diagnostics.h"
#include "json/value.h"

namespace ae::agents {

constexpr std::size_t kFileMax = 8u << 20;     // bytes
constexpr std::size_t kDepthMax = 64;          // lists and mappings inside each other
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
  bool is_invalid = false;        // its door has said what is wrong with it already
  std::vector<SourceTree> items;  // of a list, or the values of a mapping
  std::vector<Key> keys;          // of a mapping, beside `items`

  bool is_list() const { return kind == Kind::list; }
  bool is_mapping() const { return kind == Kind::mapping; }
  bool is_string() const { return kind == Kind::scalar && scalar.is_string(); }
  const SourceTree* find(std::string_view key) const;
  Value value() const;
};

// "a list", "a mapping", "a string", …: what a person calls it.
std::string_view kind_name(const SourceTree& value);

// The whole file. REQUIRES: `text` is UTF-8 without byte order mark and not too large. Faults go to `diagnostics`; false =
// there is nothing to look at any further.
bool read_yaml(std::string_view text, Diagnostics& diagnostics, SourceTree& out);
// REQUIRES: parse_json took `text` but for duplicate keys and limits, which are faults here.
bool read_json(std::string_view text, Diagnostics& diagnostics, SourceTree& out);

// Puts a SourceTree together from the words of either door, and holds it to the limits.
class SourceTreeBuilder {
 public:
  explicit SourceTreeBuilder(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  // Each gives false when a limit is passed: stop reading.
  bool open(SourceTree::Kind kind, SourceLocation at);
  bool close();
  bool scalar(Value value, SourceLocation at, bool is_invalid = false);
  // REQUIRES: wants_key().
  void key(std::string text, SourceLocation at);
  // Is the next word the key of a mapping?
  bool wants_key() const;
  bool done() const { return done_; }
  SourceTree take() { return std::move(root_); }

 private:
  struct Open {
    SourceTree value;
    bool after_key = false;
  };
  bool put(SourceTree value);
  void drop_duplicate_keys(SourceTree& mapping);

  Diagnostics& diagnostics_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
  bool done_ = false;
  SourceTree root_;
};

}  // namespace ae::agents

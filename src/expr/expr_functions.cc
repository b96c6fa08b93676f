// The table of functions, and the messages for names that are not in it.
#include "expr/expr_functions.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "expr/expr_eval.h"
#include "json/order.h"

namespace ae::expr {
namespace {

constexpr std::uint8_t kind_bits(std::initializer_list<Value::Kind> kinds) {
  unsigned bits = 0;
  for (const Value::Kind kind : kinds) bits |= 1u << static_cast<unsigned>(kind);
  return static_cast<std::uint8_t>(bits);
}

using enum Value::Kind;

// Operations of the evaluator and of the parser; the tables of plain functions are next to their
// code.
constexpr Function kOperations[] = {
    {.name = "map", .args_min = 1, .args_max = 1, .reads_input = true, .op = Op::pipe},
    {.name = "with_entries", .args_min = 1, .args_max = 1, .reads_input = true, .op = Op::pipe},
    {.name = "add", .args_min = 1, .args_max = 1, .op = Op::pipe},
    {.name = "map_values", .args_min = 1, .args_max = 1, .reads_input = true, .op = Op::map_values},
    {.name = "select", .args_min = 1, .args_max = 1, .reads_input = true, .op = Op::select},
    {.name = "empty", .op = Op::empty},
    {.name = "any", .args_min = 0, .args_max = 1, .reads_input = true, .op = Op::any},
    {.name = "any", .args_min = 2, .args_max = 2, .op = Op::any},
    {.name = "all", .args_min = 0, .args_max = 1, .reads_input = true, .op = Op::all},
    {.name = "all", .args_min = 2, .args_max = 2, .op = Op::all},
    {.name = "IN", .args_min = 1, .args_max = 1, .reads_input = true, .op = Op::is_in},
    {.name = "first", .args_min = 1, .args_max = 1, .op = Op::first},
    {.name = "last", .args_min = 1, .args_max = 1, .op = Op::last},
    {.name = "limit", .args_min = 2, .args_max = 2, .op = Op::limit},
    {.name = "nth", .args_min = 2, .args_max = 2, .op = Op::nth},
    {.name = "isempty", .args_min = 1, .args_max = 1, .op = Op::is_empty},
    {.name = "range", .args_min = 1, .args_max = 3, .op = Op::range},
    {.name = "nulls", .reads_input = true, .op = Op::only, .kinds = kind_bits({null})},
    {.name = "booleans", .reads_input = true, .op = Op::only, .kinds = kind_bits({boolean})},
    {.name = "numbers", .reads_input = true, .op = Op::only, .kinds = kind_bits({number})},
    {.name = "strings", .reads_input = true, .op = Op::only, .kinds = kind_bits({string})},
    {.name = "arrays", .reads_input = true, .op = Op::only, .kinds = kind_bits({array})},
    {.name = "objects", .reads_input = true, .op = Op::only, .kinds = kind_bits({object})},
    {.name = "iterables", .reads_input = true, .op = Op::only, .kinds = kind_bits({array, object})},
    {.name = "scalars",
     .reads_input = true,
     .op = Op::only,
     .kinds = kind_bits({null, boolean, number, string})},
    {.name = "values",
     .reads_input = true,
     .op = Op::only,
     .kinds = kind_bits({boolean, number, string, array, object})},
};

struct UnsupportedName {
  std::string_view why;
  std::string_view names;  // separated by blanks
};

constexpr UnsupportedName kUnsupportedNames[] = {
    {"expressions have no definitions; repeat the part, or bind a value with `… as $x | …`",
     "def import include"},
    {"expressions have no recursion; name the path, or use map and reduce",
     "recurse recurse_down walk paths leaf_paths tostream fromstream truncate_stream combinations"},
    {"expressions have no unbounded loops; use reduce over range(n)",
     "while until repeat foreach label break"},
    {"errors cannot be caught by message; write `…?` for no value, or `…? // other`", "try catch"},
    {"expressions do not change values in place; build the new one, as in `. + {name: value}` or "
     "`with_entries(select(.key != \"name\"))`",
     "del delpaths setpath to_path path pick"},
    {"there are no regular expressions here; use startswith, endswith, contains, split or index",
     "test match capture scan sub gsub splits"},
    {"an expression cannot read the environment; pass the value in the input",
     "env $ENV halt halt_error input_filename $__prog_args $__prog_name get_search_list "
     "modulemeta"},
    {"an expression reads only its roots; pass the value in the input",
     "input inputs input_line_number debug stderr $__loc__ __loc__ builtins"},
    {"an expression has no clock, so that a replay gives the same result; use .job.created_at or "
     "the result of a step",
     "now localtime strflocaltime"},
    {"an expression has no random values, so that a replay gives the same result", "random uuid"},
    {"dates are not computed in this version; compute them in a tool",
     "mktime gmtime strftime strptime todate fromdate date dateadd datesub todateiso8601 "
     "fromdateiso8601"},
    {"numbers here are always finite", "nan infinite isnan isinfinite isnormal isvalid"},
    {"this function's last bits differ between machines, so a replay could differ; compute it in a "
     "tool",
     "pow pow10 exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh "
     "cosh tanh gamma lgamma tgamma cbrt hypot"},
    {"a command gets its arguments as a list, without a shell: no quoting is needed", "@sh"},
    {"there is no base32 here; use @base64", "@base32 @base32d"},
};

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

// The edit distance of two names (insert, delete, replace a character).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

template <class F>
void for_each_function(F visit) {
  for (const auto table : {operations(), value_functions(), text_functions()}) {
    for (const Function& f : table) visit(f);
  }
}

}  // namespace

std::span<const Function> operations() { return kOperations; }

const Function* find_function(std::string_view name, std::size_t args) {
  const Function* found = nullptr;
  for_each_function([&](const Function& f) {
    if (f.name == name && args >= f.args_min && args <= f.args_max) found = &f;
  });
  return found;
}

std::string_view unsupported_reason(std::string_view name) {
  for (const UnsupportedName& refusal : kUnsupportedNames) {
    if (has_word(refusal.names, name)) return refusal.why;
  }
  return {};
}

std::string unknown_function_message(std::string_view name, std::size_t args) {
  std::string counts;
  std::string_view nearest;
  std::size_t nearest_distance = 3;
  for_each_function([&](const Function& f) {
    if (f.name == name) {
      if (!counts.empty()) counts += " or ";
      counts += f.args_max == f.args_min ? fmt::format("{}", f.args_min)
                                         : fmt::format("{} to {}", f.args_min, f.args_max);
    }
    const std::size_t d = name.size() > 40 ? 40 : distance(name, f.name);
    if (d < nearest_distance && d < f.name.size()) {
      nearest = f.name;
      nearest_distance = d;
    }
  });
  const std::string_view shown = truncate_utf8(name, 40);
  if (!counts.empty()) {
    return fmt::format("`{}` takes {} arguments (separated by `;`), not {}", shown, counts, args);
  }
  constexpr std::string_view kRoots = "args change item job result steps";
  if (args == 0 && has_word(kRoots, name)) {
    return fmt::format("there is no function `{}`; did you mean `.{}`?", shown, name);
  }
  if (nearest.empty()) return fmt::format("there is no function `{}`", shown);
  return fmt::format("there is no function `{}`; did you mean `{}`?", shown, nearest);
}

bool find_format(std::string_view name, Format& out) {
  constexpr std::pair<std::string_view, Format> kFormats[] = {
      {"text", Format::text},     {"json", Format::json},       {"uri", Format::uri},
      {"base64", Format::base64}, {"base64d", Format::base64d}, {"html", Format::html},
      {"csv", Format::csv},       {"tsv", Format::tsv}};
  for (const auto& [known, format] : kFormats) {
    if (known == name) {
      out = format;
      return true;
    }
  }
  return false;
}

std::string_view kind_name(const Value& v) {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "a number",
                                         "a string", "an array",  "an object"};
  return kNames[static_cast<std::size_t>(v.kind())];
}

bool is_valid_number(double number) {
  constexpr double kIntegerMax = 9007199254740991.0;  // 2^53-1
  constexpr double kPlainMax = 1e21;  // from here on, canonical numbers have an exponent
  const double size = std::fabs(number);
  return std::isfinite(number) && (size <= kIntegerMax || size >= kPlainMax);
}

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool object_of(Eval& eval, const Node& node, std::vector<Member> members, Value& out) {
  const auto less = [](const Member& a, const Member& b) { return key_less(a.first, b.first); };
  if (!std::ranges::is_sorted(members, less)) {
    std::size_t key_bytes = 0;
    for (const Member& member : members) key_bytes += member.first.size();
    if (!eval.spend(node, sort_cost(members.size(), key_bytes))) return false;
    std::ranges::stable_sort(members, less);
  }
  // std::unique from the back keeps the last of equal keys.
  const auto same = [](const Member& a, const Member& b) { return a.first == b.first; };
  const auto unique_begin = std::unique(members.rbegin(), members.rend(), same);
  members.erase(members.begin(), unique_begin.base());
  out = Value::object(std::move(members));
  return true;
}

bool depth_within(const Value& v, std::size_t depth_max) { return v.extent().depth <= depth_max; }

}  // namespace ae::expr

// The functions of the expression language, for the parser and the evaluator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expr/expr_program.h"

namespace ae::expr {

class Eval;

// One call of a plain function: `in` is the value piped into it.
struct Call {
  Eval& eval;
  const Node& node;
  const Value& in;
  std::span<const Value> args;
  Value& out;
};

inline bool return_value(const Call& call, Value v) {
  call.out = std::move(v);
  return true;
}

// False if the evaluation failed; `eval` has the reason.
using Apply = bool (*)(const Call&);

struct Function {
  std::string_view name;
  std::uint8_t args_min = 0;
  std::uint8_t args_max = 0;
  bool reads_input = false;  // uses `.`, so a value must be piped into it
  // A plain function of values (Op::call, Op::by_key), an operation of the evaluator, or Op::pipe:
  // the parser composes it of other parts.
  Op op = Op::call;
  Apply apply = nullptr;
  std::uint8_t kinds = 0;  // Op::only: bit n accepts Value::Kind n
};

// A function of its input with `args` arguments.
constexpr Function plain(std::string_view name, std::uint8_t args, Apply apply) {
  return {.name = name, .args_min = args, .args_max = args, .reads_input = true, .apply = apply};
}

// nullptr if no function of this name takes that many arguments.
const Function* find_function(std::string_view name, std::size_t args);
// Why a function or keyword of jq is not part of this language, or "".
std::string_view unsupported_reason(std::string_view name);
// The error message for a name that is no function, or not with that many arguments.
std::string unknown_function_message(std::string_view name, std::size_t args);
// False if there is no format of this name.
bool find_format(std::string_view name, Format& out);

// All functions, in three tables: operations of the evaluator and the parser, functions of values,
// and functions of texts.
std::span<const Function> operations();
std::span<const Function> value_functions();
std::span<const Function> text_functions();

// True if a value may contain the number: it is finite, and the JSON reader accepts its canonical
// form (no integer literal beyond 2^53-1).
bool is_valid_number(double number);
// "a number", "an array", …
std::string_view kind_name(const Value& v);
// Number of code points. REQUIRES: valid UTF-8.
std::size_t code_points(std::string_view text);
// An object of these members; the last of equal keys wins. Spends fuel for sorting.
bool object_of(Eval& eval, const Node& node, std::vector<Member> members, Value& out);
// True if a value nests at most `depth_max` containers deep.
bool depth_within(const Value& v, std::size_t depth_max);
inline bool truthy(const Value& v) { return !v.is_null() && !(v.is_bool() && !v.as_bool()); }

// The first position of `wanted` in `text` from byte `from`, or npos. Linear for all inputs.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from);
// Splits `text` at each `by`, or into its characters if `by` is empty.
bool split_text(Eval& eval, const Node& node, std::string_view text, std::string_view by,
                Value& out);

// Arithmetic and the formats; they fail like functions.
bool arithmetic(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out);
bool apply_format(Eval& eval, const Node& node, Format format, const Value& v, std::string& out);
// Appends a string as it is, any other value as canonical JSON.
bool append_text(Eval& eval, const Node& node, const Value& v, std::string& out);

}  // namespace ae::expr

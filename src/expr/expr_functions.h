// The functions of the expression language, as the parser and the evaluator see them.
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

// false = the evaluation failed, and `eval` knows why.
using Apply = bool (*)(const Call&);

struct Function {
  std::string_view name;
  std::uint8_t args_min = 0;
  std::uint8_t args_max = 0;
  bool reads_input = false;  // looks at `.`, so that something must be piped into it
  // A plain function of values (Op::call, Op::by_key), an operation of the evaluator, or Op::pipe: put
  // together from other parts by the parser.
  Op op = Op::call;
  Apply apply = nullptr;
  std::uint8_t kinds = 0;  // Op::only: bit n lets Value::Kind n pass
};

// A function of its input that takes `args` arguments.
constexpr Function plain(std::string_view name, std::uint8_t args, Apply apply) {
  return {.name = name, .args_min = args, .args_max = args, .reads_input = true, .apply = apply};
}

// nullptr when there is none of this name that takes that many arguments.
const Function* find_function(std::string_view name, std::size_t args);
// "" or why a function or word of jq is not part of this language.
std::string_view unsupported_reason(std::string_view name);
// What to say of a name that is no function here, or not with so many arguments.
std::string unknown_function_message(std::string_view name, std::size_t args);
// False when there is no format of this name.
bool find_format(std::string_view name, Format& out);

// All functions, in three tables: operations of the evaluator and the parser, and those of values and
// of texts.
std::span<const Function> operations();
std::span<const Function> value_functions();
std::span<const Function> text_functions();

// Whether a number may stand in a value: finite, and written by canonical JSON in a form that its
// reader takes back (no integer literal beyond 2^53-1).
bool is_valid_number(double number);
// "a number", "an array", …
std::string_view kind_name(const Value& v);
// Number of code points. REQUIRES: valid UTF-8.
std::size_t code_points(std::string_view text);
// An object of these members; of equal keys the last wins. Pays for sorting them.
bool object_of(Eval& eval, const Node& node, std::vector<Member> members, Value& out);
// Whether a value nests at most `depth_max` containers deep.
bool depth_within(const Value& v, std::size_t depth_max);
inline bool truthy(const Value& v) { return !v.is_null() && !(v.is_bool() && !v.as_bool()); }

// Where `wanted` begins in `text` from byte `from` on, or npos. Linear, whatever the texts are.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from);
// The parts of `text` between each `by`; its characters when `by` is empty.
bool split_text(Eval& eval, const Node& node, std::string_view text, std::string_view by,
                Value& out);

// Arithmetic and the formats; they fail like a function does.
bool arithmetic(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out);
bool apply_format(Eval& eval, const Node& node, Format format, const Value& v, std::string& out);
// The value's text: a text is itself, anything else its canonical JSON.
bool append_text(Eval& eval, const Node& node, const Value& v, std::string& out);

}  // namespace ae::expr

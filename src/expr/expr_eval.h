// Eval: the evaluator. Walks the tree of an expression and emits each value as it is computed.
//
// Values are emitted through a Sink, in jq's order, so nothing is collected unnecessarily. Every
// step costs fuel; without fuel, or after a failure, all functions return false up to the root.
#pragma once

#include <compare>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expr/expr_program.h"

namespace ae::expr {

// Receives one value; returns false to stop. Borrows the callable that it is made from.
class Sink {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cv_t<F>, Sink>)
  Sink(F& callback)  // NOLINT: a lambda is a sink
      : callback_(std::addressof(callback)),
        call_([](void* f, const Value& v) { return static_cast<bool>((*static_cast<F*>(f))(v)); }) {
  }
  bool operator()(const Value& v) const { return call_(callback_, v); }

 private:
  void* callback_;
  bool (*call_)(void*, const Value&);
};

class Eval {
 public:
  // Borrows all arguments; subtracts from `fuel`.
  Eval(const Program& program, const ExprScope& scope, const ExprLimits& limits, std::size_t& fuel)
      : program_(program), scope_(scope), limits_(limits), fuel_(fuel), slots_(program.slots) {}

  Result<Value> run();

  // For the functions: each returns false if the evaluation has failed and must stop.
  bool spend(const Node& node, std::size_t n) { return spend_at(node.at, n); }
  bool spend_text(const Node& node, std::size_t bytes) { return spend_at(node.at, 1 + bytes / 64); }
  // For text that is not copied or compared in bulk: spend_bytes where each byte is examined,
  // spend_search where another text is searched in it.
  bool spend_bytes(const Node& node, std::size_t bytes) { return spend_at(node.at, bytes / 16); }
  bool spend_search(const Node& node, std::size_t bytes) { return spend_at(node.at, bytes / 8); }
  bool fail(const Node& node, std::string_view message) { return fail_at(node.at, message); }
  bool compare(const Node& node, const Value& a, const Value& b, std::strong_ordering& out);
  bool number(const Node& node, double d, Value& out);
  // For a text as JSON writes it.
  bool spend_written(const Node& node, std::string_view text);
  // Spends fuel for writing or walking all of a value; fails if it nests too deep.
  bool spend_value(const Node& node, const Value& v);
  // The value of an object's key or at an array's index.
  bool index(const Node& node, const Value& v, const Value& key, Value& out);
  // True if a value that was just made is within the limits; otherwise the evaluation fails.
  bool check_limits(const Node& node, const Value& v) {
    return v.kind() < Value::Kind::string || is_within_limits(v, limits_) || too_large_at(node.at);
  }
  // The same for a text, before it is allocated.
  bool check_text_limit(const Node& node, double bytes) {
    return bytes <= static_cast<double>(limits_.bytes_max) || too_large_at(node.at);
  }
  bool failed() const { return failed_; }

  // Operations on deeper values fail. Twice the limit of a document, so that two can be combined.
  std::size_t work_depth_max() const { return 2 * limits_.depth_max; }

 private:
  bool one(const Node& n, const Value& in, Value& out);
  bool each(const Node& n, const Value& in, Sink sink);
  bool exactly_one(const Node& n, const Value& in, Value& out);

  bool one_path(const Node& n, const Value& in, Value& out);
  bool one_step_by(const Node& n, const Value& in, Value& out);
  bool one_pipe(const Node& n, const Value& in, Value& out);
  bool one_negated(const Node& n, const Value& in, Value& out);
  bool one_binary(const Node& n, const Value& in, Value& out);
  bool one_logic(const Node& n, const Value& in, Value& out);
  bool one_conditional(const Node& n, const Value& in, Value& out);
  bool one_alternative(const Node& n, const Value& in, Value& out);
  bool one_object(const Node& n, const Value& in, Value& out);
  bool one_text(const Node& n, const Value& in, Value& out);
  bool one_reduce(const Node& n, const Value& in, Value& out);
  bool one_call(const Node& n, const Value& in, Value& out);
  bool collect(const Node& n, const Value& in, Value& out);
  bool search(const Node& n, const Value& in, bool target, Value& out);
  bool is_in(const Node& n, const Value& in, Value& out);
  bool is_empty(const Node& n, const Value& in, Value& out);
  bool map_values(const Node& n, const Value& in, Value& out);
  bool by_key(const Node& n, const Value& in, Value& out);
  // True if the values may be compared; otherwise it fails (ExprScope::fails_on_mixed_types).
  bool comparable(const Node& n, const Value& a, const Value& b);
  bool apply_binary(const Node& n, const Value& a, const Value& b, Value& out);
  bool make_object(const Node& n, const std::vector<Value>& flat, Value& out);

  bool each_path(const Node& n, const Value& in, std::size_t suffixes, Sink sink);
  bool each_suffix(const Node& n, const Suffix& s, const Value& v, const Value* from,
                   const Value* to, Sink sink);
  bool each_step_by(const Node& n, const Value& in, Sink sink);
  bool each_negated(const Node& n, const Value& in, Sink sink);
  bool each_binary(const Node& n, const Value& in, Sink sink);
  bool each_stage(const Node& n, const Value& in, std::size_t stage, Sink sink);
  bool each_member(const Node& n, const Value& in, std::vector<Value>& flat, Sink sink);
  bool each_text(const Node& n, const Value& in, std::size_t texts_left,
                 std::vector<std::string>& texts, Sink sink);
  bool each_args(const Node& n, const Value& in, std::vector<Value>& args, Sink sink);
  bool each_logic(const Node& n, const Value& in, Sink sink);
  bool each_alternative(const Node& n, const Value& in, Sink sink);
  bool each_attempt(const Node& n, const Value& in, Sink sink);
  bool each_limit(const Node& n, const Value& in, Sink sink);
  bool each_range(const Node& n, const Value& in, Sink sink);

  // The result of a suffix. `missing` is for optional suffixes only: no value, and no failure.
  enum class Found { yes, missing, failed };
  bool fails_on_null(const Node& path) const;
  bool is_of_closed_root(const Node& path, const Suffix& s) const;
  // The same for a path: fails on null where the scope forbids it.
  Found look_up(const Node& path, const Suffix& s, const Value& v, const Value* from,
                const Value* to, const Value*& found, Value& storage);
  Found look_up(const Suffix& s, const Value& v, const Value* from, const Value* to,
                const Value*& found, Value& storage);
  Found not_found(const Suffix& s, std::string message);
  Found slice(const Suffix& s, const Value& v, const Value* from, const Value* to, Value& out);
  bool root(const Node& n, Value& out);
  bool step(const Node& n, std::string_view name, Value& out);

  bool spend_at(std::uint32_t at, std::size_t n);
  bool fail_at(std::uint32_t at, std::string_view message);
  bool out_of_fuel(std::uint32_t at);
  bool too_large_at(std::uint32_t at);

  const Program& program_;
  const ExprScope& scope_;
  const ExprLimits& limits_;
  std::size_t& fuel_;
  std::vector<Value>
      slots_;  // of variables; no part of a tree runs inside itself, so one each is enough
  bool null_is_accepted_ = false;  // for the paths being evaluated now (ExprScope::fails_on_null)
  bool failed_ = false;
  bool fatal_ = false;  // a failure that `?` does not catch
  std::uint32_t fault_at_ = 0;
  std::string fault_;
};

// A null, for callers that need a reference.
const Value& null_value();

// The number of steps to walk a value: for budgets that include more than evaluation.
std::size_t walking_cost(const Value& v);
// A lower bound of the steps to write it: two for each value, as Eval::spend_value does.
std::size_t writing_cost(const Value& v);

// Evaluates with the rest of `fuel`, for callers that evaluate several expressions on one budget.
Result<Value> run(const Program& program, const ExprScope& scope, const ExprLimits& limits,
                  std::size_t& fuel);

}  // namespace ae::expr

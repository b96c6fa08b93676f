// The evaluator: the parts of an expression that may give any number of values, in jq's order.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "expr/expr_eval.h"
#include "expr/expr_functions.h"

namespace ae::expr {

bool Eval::each(const Node& n, const Value& in, Sink sink) {
  if (n.count == Count::one) {
    Value v;
    return one(n, in, v) && sink(v);
  }
  if (!spend(n, 1)) return false;
  switch (n.op) {
    case Op::path:
      return each_path(n, in, n.suffixes.size(), sink);
    case Op::pipe:
      return each_stage(n, in, 0, sink);
    case Op::comma:
      return std::ranges::all_of(n.children,
                                 [&](const NodePtr& child) { return each(*child, in, sink); });
    case Op::object: {
      std::vector<Value> flat;
      return each_member(n, in, flat, sink);
    }
    case Op::text: {
      std::vector<std::string> texts(n.children.size());
      return each_text(n, in, n.children.size(), texts, sink);
    }
    case Op::step_by:
      return each_step_by(n, in, sink);
    case Op::negate:
      return each_negated(n, in, sink);
    case Op::logical_and:
    case Op::logical_or:
      return each_logic(n, in, sink);
    case Op::alternative:
      return each_alternative(n, in, sink);
    case Op::conditional: {
      auto on_value = [&](const Value& v) {
        return each(*n.children[truthy(v) ? 1 : 2], in, sink);
      };
      return each(*n.children[0], in, on_value);
    }
    case Op::bind: {
      auto on_value = [&](const Value& v) {
        slots_[n.slot] = v;
        return each(*n.children[1], in, sink);
      };
      return each(*n.children[0], in, on_value);
    }
    case Op::attempt:
      return each_attempt(n, in, sink);
    case Op::call: {
      std::vector<Value> args;
      return each_args(n, in, args, sink);
    }
    case Op::select: {
      auto on_value = [&](const Value& v) { return !truthy(v) || sink(in); };
      return each(*n.children[0], in, on_value);
    }
    case Op::only:
      return (n.kinds >> static_cast<unsigned>(in.kind()) & 1u) == 0 || sink(in);
    case Op::empty:
      return true;
    case Op::first:
    case Op::last:
    case Op::limit:
    case Op::nth:
      return each_limit(n, in, sink);
    case Op::range:
      return each_range(n, in, sink);
    default:
      return each_binary(n, in, sink);
  }
}

bool Eval::each_step_by(const Node& n, const Value& in, Sink sink) {
  auto on_value = [&](const Value& name) {
    Value v;
    if (!name.is_string()) return fail(n, "a step is named by a string");
    return spend(n, name.as_string().size() / 64) && step(n, name.as_string(), v) && sink(v);
  };
  return each(*n.children[0], in, on_value);
}

bool Eval::each_negated(const Node& n, const Value& in, Sink sink) {
  auto on_value = [&](const Value& v) {
    if (!v.is_number()) return fail(n, fmt::format("cannot negate {}", kind_name(v)));
    return sink(Value(-v.as_number()));
  };
  return each(*n.children[0], in, on_value);
}

// As in jq, the right side is the outer loop.
bool Eval::each_binary(const Node& n, const Value& in, Sink sink) {
  auto on_right = [&](const Value& b) {
    auto on_left = [&](const Value& a) {
      Value v;
      return apply_binary(n, a, b, v) && sink(v);
    };
    return each(*n.children[0], in, on_left);
  };
  return each(*n.children[1], in, on_right);
}

bool Eval::each_stage(const Node& n, const Value& in, std::size_t stage, Sink sink) {
  if (stage + 1 == n.children.size()) return each(*n.children[stage], in, sink);
  auto on_value = [&](const Value& v) { return each_stage(n, v, stage + 1, sink); };
  return each(*n.children[stage], in, on_value);
}

bool Eval::each_member(const Node& n, const Value& in, std::vector<Value>& flat, Sink sink) {
  if (flat.size() == n.children.size()) {
    Value v;
    return spend(n, 1) && make_object(n, flat, v) && sink(v);
  }
  auto on_value = [&](const Value& v) {
    flat.push_back(v);
    const bool more = each_member(n, in, flat, sink);
    flat.pop_back();
    return more;
  };
  return each(*n.children[flat.size()], in, on_value);
}

// The last interpolation is the outer loop.
bool Eval::each_text(const Node& n, const Value& in, std::size_t texts_left,
                     std::vector<std::string>& texts, Sink sink) {
  if (texts_left == 0) {
    std::size_t bytes = n.texts[0].size();
    for (std::size_t i = 0; i < texts.size(); ++i) bytes += texts[i].size() + n.texts[i + 1].size();
    if (!spend_text(n, bytes) || !check_text_limit(n, static_cast<double>(bytes))) return false;
    std::string text = n.texts[0];
    for (std::size_t i = 0; i < texts.size(); ++i) text.append(texts[i]).append(n.texts[i + 1]);
    const Value v(std::move(text));
    return check_limits(n, v) && sink(v);
  }
  auto on_value = [&](const Value& v) {
    texts[texts_left - 1].clear();
    return apply_format(*this, *n.children[texts_left - 1], n.format, v, texts[texts_left - 1]) &&
           each_text(n, in, texts_left - 1, texts, sink);
  };
  return each(*n.children[texts_left - 1], in, on_value);
}

bool Eval::each_args(const Node& n, const Value& in, std::vector<Value>& args, Sink sink) {
  if (args.size() == n.children.size()) {
    Value v;
    return n.function->apply({.eval = *this, .node = n, .in = in, .args = args, .out = v}) &&
           check_limits(n, v) && sink(v);
  }
  auto on_value = [&](const Value& v) {
    args.push_back(v);
    const bool more = each_args(n, in, args, sink);
    args.pop_back();
    return more;
  };
  return each(*n.children[args.size()], in, on_value);
}

bool Eval::each_logic(const Node& n, const Value& in, Sink sink) {
  const bool ends = n.op == Op::logical_or;
  auto on_right = [&](const Value& v) { return sink(Value(truthy(v))); };
  auto on_left = [&](const Value& v) {
    return truthy(v) == ends ? sink(Value(ends)) : each(*n.children[1], in, on_right);
  };
  return each(*n.children[0], in, on_left);
}

bool Eval::each_alternative(const Node& n, const Value& in, Sink sink) {
  bool found = false;
  const bool before = null_is_accepted_;
  const bool allows_null = before || is_plain_path(*n.children[0]);
  auto on_value = [&](const Value& v) {
    if (!truthy(v)) return true;
    found = true;
    null_is_accepted_ = before;
    const bool more = sink(v);
    null_is_accepted_ = allows_null;
    return more;
  };
  null_is_accepted_ = allows_null;
  const bool ok = each(*n.children[0], in, on_value);
  null_is_accepted_ = before;
  if (!ok) return false;
  return found || each(*n.children[1], in, sink);
}

bool Eval::each_attempt(const Node& n, const Value& in, Sink sink) {
  bool stopped = false;  // by the receiver of the values: `?` does not catch that
  auto on_value = [&](const Value& v) {
    stopped = !sink(v);
    return !stopped;
  };
  if (each(*n.children[0], in, on_value)) return true;
  if (stopped || fatal_) return false;
  failed_ = false;
  return true;
}

bool Eval::each_limit(const Node& n, const Value& in, Sink sink) {
  if (n.op == Op::first || n.op == Op::last) {
    bool has = false;
    Value found;
    auto on_value = [&](const Value& v) {
      found = v;
      has = true;
      return n.op == Op::last;
    };
    if (!each(*n.children[0], in, on_value) && failed_) return false;
    return !has || sink(found);
  }
  auto with_count = [&](const Value& count) {
    if (!count.is_number() || count.as_number() < 0) {
      return fail(n, fmt::format("{} counts with a number from 0 up", n.function->name));
    }
    double items_left = count.as_number();
    bool stopped = false;
    auto on_value = [&](const Value& v) {
      if (n.op == Op::nth) {
        if (items_left >= 1) {
          items_left -= 1;
          return true;
        }
        stopped = !sink(v);
        return false;
      }
      stopped = !sink(v);
      items_left -= 1;
      return !stopped && items_left > 0;
    };
    if (n.op == Op::limit && items_left <= 0) return true;
    return each(*n.children[1], in, on_value) || (!stopped && !failed_);
  };
  return each(*n.children[0], in, with_count);
}

// range(from; to; by)
bool Eval::each_range(const Node& n, const Value& in, Sink sink) {
  const auto count = [&](const Value& from, const Value& to, const Value& by) {
    if (!from.is_number() || !to.is_number() || !by.is_number()) {
      return fail(n, "range goes from number to number");
    }
    const double step = by.as_number();
    const double end = to.as_number();
    if (step == 0) return true;
    for (double d = from.as_number(); step > 0 ? d < end : d > end; d += step) {
      Value v;
      if (!spend(n, 1) || !number(n, d, v) || !sink(v)) return false;
    }
    return true;
  };
  auto on_from = [&](const Value& from) {
    auto on_to = [&](const Value& to) {
      auto on_by = [&](const Value& by) { return count(from, to, by); };
      return each(*n.children[2], in, on_by);
    };
    return each(*n.children[1], in, on_to);
  };
  return each(*n.children[0], in, on_from);
}

}  // namespace ae::expr

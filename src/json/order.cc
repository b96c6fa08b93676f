// The total order of JSON values, with counted work.
#include "json/order.h"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

namespace ae {
namespace {

using Ordering = std::strong_ordering;
constexpr int kDepthMax = 1000;

Ordering sign(int c) {
  return c < 0 ? Ordering::less : c > 0 ? Ordering::greater : Ordering::equal;
}

int kind_rank(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::null:
      return 0;
    case Value::Kind::boolean:
      return v.as_bool() ? 2 : 1;
    case Value::Kind::number:
      return 3;
    case Value::Kind::string:
      return 4;
    case Value::Kind::array:
      return 5;
    case Value::Kind::object:
      return 6;
  }
  return 0;
}

// Keys are in canonical order (UTF-16); strings compare by code points. The two differ only beyond
// U+D7FF, so most objects need no sorting.
std::vector<const Member*> sorted_by_code_points(const Value& object) {
  std::vector<const Member*> members;
  members.reserve(object.size());
  for (const Member& m : object.members()) members.push_back(&m);
  const auto less = [](const Member* a, const Member* b) { return a->first < b->first; };
  if (!std::ranges::is_sorted(members, less)) std::ranges::sort(members, less);
  return members;
}

// Sorting reads every key.
std::size_t key_cost(const Value& object) {
  std::size_t bytes = 0;
  for (const Member& m : object.members()) bytes += m.first.size();
  return bytes / 64;
}

class Comparison {
 public:
  explicit Comparison(std::size_t& work) : work_(work) {}

  // The result is meaningless once is_exhausted_ is true.
  Ordering compare(const Value& a, const Value& b, int depth) {
    if (!spend(1) || depth > kDepthMax) {
      is_exhausted_ = true;
      return Ordering::equal;
    }
    const int ra = kind_rank(a);
    const int rb = kind_rank(b);
    if (ra != rb) return sign(ra - rb);
    switch (a.kind()) {
      case Value::Kind::number:
        return a.as_number() < b.as_number()   ? Ordering::less
               : a.as_number() > b.as_number() ? Ordering::greater
                                               : Ordering::equal;
      case Value::Kind::string:
        return texts(a.as_string(), b.as_string());
      case Value::Kind::array:
        return arrays(a, b, depth);
      case Value::Kind::object:
        return objects(a, b, depth);
      case Value::Kind::null:
      case Value::Kind::boolean:
        break;
    }
    return Ordering::equal;
  }

  bool is_exhausted() const { return is_exhausted_; }

 private:
  bool spend(std::size_t n) {
    if (work_ < n) is_exhausted_ = true;
    work_ = is_exhausted_ ? 0 : work_ - n;
    return !is_exhausted_;
  }

  Ordering texts(std::string_view a, std::string_view b) {
    spend(std::min(a.size(), b.size()) / 64);
    return sign(a.compare(b));
  }

  Ordering arrays(const Value& a, const Value& b, int depth) {
    const auto x = a.items();
    const auto y = b.items();
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      const Ordering o = compare(x[i], y[i], depth + 1);
      if (o != Ordering::equal || is_exhausted_) return o;
    }
    return x.size() <=> y.size();
  }

  Ordering objects(const Value& a, const Value& b, int depth) {
    if (!spend(a.size() + b.size()) || !spend(key_cost(a) + key_cost(b))) return Ordering::equal;
    const auto x = sorted_by_code_points(a);
    const auto y = sorted_by_code_points(b);
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      const Ordering o = texts(x[i]->first, y[i]->first);
      if (o != Ordering::equal || is_exhausted_) return o;
    }
    if (x.size() != y.size()) return x.size() <=> y.size();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Ordering o = compare(x[i]->second, y[i]->second, depth + 1);
      if (o != Ordering::equal || is_exhausted_) return o;
    }
    return Ordering::equal;
  }

  std::size_t& work_;
  bool is_exhausted_ = false;
};

}  // namespace

std::optional<std::strong_ordering> compare_values(const Value& a, const Value& b,
                                                   std::size_t& work) {
  Comparison comparison(work);
  const Ordering result = comparison.compare(a, b, 0);
  if (!comparison.is_exhausted()) return result;
  work = 0;
  return std::nullopt;
}

std::size_t find_cost(std::size_t members, std::string_view key) noexcept {
  constexpr int kFree = 4;  // comparisons that cost nothing: among few members
  const auto comparisons = static_cast<int>(std::bit_width(members));
  return static_cast<std::size_t>(std::max(comparisons - kFree, 0)) +
         key.size() / 64 * static_cast<std::size_t>(1 + comparisons);
}

std::size_t sort_cost(std::size_t count, std::size_t key_bytes) noexcept {
  const auto levels = static_cast<std::size_t>(std::bit_width(count));
  return (count / 4 + key_bytes / 64) * levels;
}

}  // namespace ae

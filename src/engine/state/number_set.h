// NumberSet: a set of a few numbers in ascending order: the indexes of the steps that move now, or
// the numbers of tries. A sorted vector, which allocates nothing once it has its size.
//
// Threads: a value; one owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ae::engine {

class NumberSet {
 public:
  using const_iterator = std::vector<std::uint32_t>::const_iterator;
  const_iterator begin() const { return numbers_.begin(); }
  const_iterator end() const { return numbers_.end(); }
  bool empty() const { return numbers_.empty(); }
  std::size_t size() const { return numbers_.size(); }
  std::uint32_t last() const { return numbers_.back(); }  // REQUIRES: it is not empty
  // The first one that is at least `number`.
  const_iterator lower_bound(std::uint32_t number) const {
    return std::ranges::lower_bound(numbers_, number);
  }
  bool contains(std::uint32_t number) const {
    const auto at = lower_bound(number);
    return at != end() && *at == number;
  }
  // Adds the number, or removes it.
  void set(std::uint32_t number, bool in) {
    if (numbers_.empty() || numbers_.back() < number) {
      if (in) numbers_.push_back(number);
      return;
    }
    if (numbers_.back() == number) {
      if (!in) numbers_.pop_back();
      return;
    }
    const auto at = lower_bound(number);
    const bool is_in = *at == number;  // `at` is before the last one
    if (in && !is_in) numbers_.insert(at, number);
    if (!in && is_in) numbers_.erase(at);
  }
  void insert(std::uint32_t number) { set(number, true); }
  void clear() { numbers_.clear(); }
  // Changes each number by `change`, which keeps their order.
  template <class Change>
  void renumber(Change change) {
    for (std::uint32_t& number : numbers_) change(number);
  }

 private:
  std::vector<std::uint32_t> numbers_;
};

}  // namespace ae::engine

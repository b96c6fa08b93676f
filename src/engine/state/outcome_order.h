// OutcomeOrder: in which order the routine of a code node is given the outcomes of its requests
// (engine/code/code.h).
//
// An outcome has the position that the log names; the others fill the free positions, in log order.
// Positions below the number of outcomes that the routine is known to have been given are final
// (`finalize`): no outcome is added there. A final outcome that no routine needs again can be
// forgotten: then it is only counted. So the memory follows what is kept, not what has passed.
//
// Threads: a value; one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace ae::engine {

class OutcomeOrder {
 public:
  static constexpr std::uint32_t kForgotten = 0xffffffff;
  struct Place {
    std::uint64_t position = 0;
    std::uint32_t step = kForgotten;
  };

  // The outcomes in the log.
  std::uint64_t size() const { return final_ + unplaced_.size() + placed_.size(); }
  // May the next outcome in the log have been delivered as number `position`?
  bool may_add(std::uint64_t position) const {
    return position >= final_ && position <= size() && !placed_.contains(position);
  }
  // REQUIRES: may_add(*position).
  void add(std::uint32_t step, std::optional<std::uint64_t> position);
  // The routine had been given `delivered` outcomes. REQUIRES: delivered <= size().
  void finalize(std::uint64_t delivered);
  // The outcomes of these steps, in ascending order, are only counted from now on. Their positions
  // are at least `from`.
  void forget(const std::vector<std::uint32_t>& steps, std::uint64_t from);
  // The outcomes that are not forgotten, in the order of delivery.
  std::vector<Place> places() const;
  struct Logged {
    std::uint64_t number = 0;  // in the log
    std::uint32_t step = kForgotten;
  };
  // The outcomes from number `from` on, in log order. Without those that are final or forgotten.
  std::vector<Logged> since(std::uint64_t from) const;
  // Changes the index of each step by `change`.
  template <class Change>
  void renumber(Change change) {
    for (Place& place : kept_) change(place.step);
    for (Logged& logged : unplaced_) change(logged.step);
    for (auto& [position, logged] : placed_) change(logged.step);
  }
  // The bytes that it holds, for the limits of caches.
  std::size_t bytes() const;

  // Its fields, for checkpoints.
  template <class Order, class Fields>
  static void fields(Order& order, Fields with) {
    with(order.final_, order.kept_, order.unplaced_, order.placed_);
  }
  // Are the steps below this number, and the positions possible? Of one that was read.
  bool is_valid(std::size_t steps) const;

 private:
  std::uint64_t final_ = 0;                 // positions below it are final
  std::vector<Place> kept_;                 // final ones, by position
  std::deque<Logged> unplaced_;             // without a position of their own, in log order
  std::map<std::uint64_t, Logged> placed_;  // by position
};

}  // namespace ae::engine

// Spine: where the links of a job's commits point, so that finding the n-th one takes O(log n): a skew-binary list.
//
// Stored: `prev` and `jump` of every commit follow from the commits before it alone.
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ae::store::sqlite {

class SkipList {
 public:
  // A tree of the list: its newest commit, and how many it spans.
  struct Root {
    std::int64_t commit = 0;
    std::uint64_t size = 0;
  };
  struct Links {
    std::optional<std::int64_t> prev, jump;
    std::uint64_t size = 1;
  };

  // Of a list of so many commits. The sizes follow from their number alone: greedy, from the largest 2^k − 1; the
  // commits of the roots are the caller's to fill in.
  static SkipList of(std::uint64_t commits) {
    SkipList skip_list;
    std::uint64_t size = 1;
    while (size * 2 + 1 <= commits) size = size * 2 + 1;
    for (std::uint64_t left = commits; left > 0;) {
      while (size > left) size /= 2;
      skip_list.roots_.push_back({0, size});
      left -= size;
    }
    return skip_list;
  }

  // What a commit behind all these links to.
  Links next() const {
    Links links;
    std::size_t kept = roots_.size();
    if (kept > 0) links.prev = roots_.back().commit;
    if (kept >= 2 && roots_[kept - 1].size == roots_[kept - 2].size) {
      links.size = roots_.back().size * 2 + 1;
      kept -= 2;
    }
    if (kept > 0) links.jump = roots_[kept - 1].commit;
    return links;
  }
  // REQUIRES: `links` is what next() gave.
  void add(std::int64_t commit, const Links& links) {
    if (links.size > 1) roots_.resize(roots_.size() - 2);
    roots_.push_back({commit, links.size});
  }

  std::vector<Root>& roots() { return roots_; }  // oldest first; the last root is the last commit
  std::int64_t last() const { return roots_.back().commit; }

 private:
  std::vector<Root> roots_;
};

}  // namespace ae::store::sqlite

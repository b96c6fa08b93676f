// SkipList: the pointers between a job's commits, a skew-binary list in which finding the n-th
// commit takes O(log n).
//
// Stored: `prev` and `jump` of every commit depend only on the commits before it.
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ae::store::sqlite {

class SkipList {
 public:
  // A tree of the list: its newest commit, and the number of commits it spans.
  struct Root {
    std::int64_t commit = 0;
    std::uint64_t size = 0;
  };
  struct Links {
    std::optional<std::int64_t> prev, jump;
    std::uint64_t size = 1;
  };

  // A list of this many commits. Their number determines the tree sizes: greedy, from the largest
  // 2^k − 1. The caller fills in the commits of the roots.
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

  // The pointers of the next commit.
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
  // REQUIRES: `links` is what next() returned.
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

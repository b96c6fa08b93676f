// RateLimiter: how often each of many may do a thing: so many a second, and so many more at once after a rest.
//
// Told the time. Remembers so many names and no more: of who was not seen for longest it is forgotten that they had asked.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/time.h"

namespace ae::api {

class RateLimiter {
 public:
  struct Limit {
    double per_second = 1;
    double burst = 1;  // at most so many at once. REQUIRES: 1 or more
  };

  RateLimiter(Limit limit, std::size_t names_max) : limit_(limit), names_max_(names_max) {}

  // Takes one; or says how long it takes until there is one, and takes none.
  std::optional<Duration> try_acquire(std::string_view name, Duration now);
  std::size_t names() const { return by_name_.size(); }

 private:
  struct Bucket {
    std::string name;
    double tokens;
    Duration at;  // when `tokens` was right
  };
  Bucket& find(std::string_view name, Duration now);

  const Limit limit_;
  const std::size_t names_max_;
  std::list<Bucket> buckets_by_use_;  // who was seen last stands first
  std::unordered_map<std::string_view, std::list<Bucket>::iterator> by_name_;  // borrows the names
};

}  // namespace ae::api

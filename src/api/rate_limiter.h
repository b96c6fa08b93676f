// RateLimiter: a token bucket per name: a rate per second and a burst.
//
// The caller passes the time. The number of names is bounded: the least recently used bucket is
// dropped first.
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
    double burst = 1;  // capacity of the bucket. REQUIRES: 1 or more
  };

  RateLimiter(Limit limit, std::size_t names_max) : limit_(limit), names_max_(names_max) {}

  // Takes a token; if there is none, returns the time until the next.
  std::optional<Duration> try_acquire(std::string_view name, Duration now);
  std::size_t names() const { return by_name_.size(); }

 private:
  struct Bucket {
    std::string name;
    double tokens;
    Duration at;  // when `tokens` was computed
  };
  Bucket& find(std::string_view name, Duration now);

  const Limit limit_;
  const std::size_t names_max_;
  std::list<Bucket> buckets_by_use_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Bucket>::iterator> by_name_;  // borrows the names
};

}  // namespace ae::api

// Token buckets, refilled with time.
#include "api/rate_limiter.h"

#include <algorithm>
#include <cmath>

namespace ae::api {

RateLimiter::Bucket& RateLimiter::find(std::string_view name, Duration now) {
  if (const auto known = by_name_.find(name); known != by_name_.end()) {
    buckets_by_use_.splice(buckets_by_use_.begin(), buckets_by_use_, known->second);
    return buckets_by_use_.front();
  }
  if (buckets_by_use_.size() >= names_max_) {
    by_name_.erase(buckets_by_use_.back().name);
    buckets_by_use_.pop_back();
  }
  buckets_by_use_.push_front({.name = std::string(name), .tokens = limit_.burst, .at = now});
  by_name_.emplace(buckets_by_use_.front().name, buckets_by_use_.begin());
  return buckets_by_use_.front();
}

std::optional<Duration> RateLimiter::try_acquire(std::string_view name, Duration now) {
  Bucket& bucket = find(name, now);
  const double seconds = std::max(0.0, static_cast<double>((now - bucket.at).count()) / 1e6);
  bucket.tokens = std::min(limit_.burst, bucket.tokens + seconds * limit_.per_second);
  bucket.at = std::max(bucket.at, now);
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return std::nullopt;
  }
  const double missing = (1 - bucket.tokens) / limit_.per_second;
  return Duration(static_cast<std::int64_t>(std::ceil(missing * 1e6)));
}

}  // namespace ae::api

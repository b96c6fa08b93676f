// Tokens that come back with time.
#include "api/buckets.h"

#include <algorithm>
#include <cmath>

namespace ae::api {

Buckets::Bucket& Buckets::find(std::string_view name, Duration now) {
  if (const auto known = by_name_.find(name); known != by_name_.end()) {
    buckets_.splice(buckets_.begin(), buckets_, known->second);
    return buckets_.front();
  }
  if (buckets_.size() >= names_max_) {
    by_name_.erase(buckets_.back().name);
    buckets_.pop_back();
  }
  buckets_.push_front({.name = std::string(name), .left = limit_.burst, .at = now});
  by_name_.emplace(buckets_.front().name, buckets_.begin());
  return buckets_.front();
}

std::optional<Duration> Buckets::take(std::string_view name, Duration now) {
  Bucket& bucket = find(name, now);
  const double seconds = std::max(0.0, static_cast<double>((now - bucket.at).count()) / 1e6);
  bucket.left = std::min(limit_.burst, bucket.left + seconds * limit_.per_second);
  bucket.at = std::max(bucket.at, now);
  if (bucket.left >= 1) {
    bucket.left -= 1;
    return std::nullopt;
  }
  const double missing = (1 - bucket.left) / limit_.per_second;
  return Duration(static_cast<std::int64_t>(std::ceil(missing * 1e6)));
}

}  // namespace ae::api

// What a program writes, within limits: its captured stdout, the end of its stderr, the newest line
// of its progress channel.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "tools/command/processes.h"
#include "tools/tool.h"

namespace ae::tools {

// The first `keep` bytes of stdout; beyond that limit, also the hash of all bytes.
class OutputCapture {
 public:
  explicit OutputCapture(std::size_t keep) : keep_(keep) {}
  void add(std::string_view bytes) {
    size_ += bytes.size();
    if (!hash_ && size_ <= keep_) {
      kept_ += bytes;
      return;
    }
    if (!hash_) {
      hash_ = std::make_unique<Sha256>();
      hash_->add(kept_);
      kept_ += bytes.substr(0, keep_ - kept_.size());
    }
    hash_->add(bytes);
  }
  void move_into(ProcessExit& ended) {
    ended.output = std::move(kept_);
    ended.output_size = size_;
    if (hash_) ended.output_hash = hash_->finish();
  }

 private:
  std::size_t keep_, size_ = 0;
  std::string kept_;
  std::unique_ptr<Sha256> hash_;  // only once the limit is exceeded
};

// The last kStderrTailMax bytes of stderr.
class OutputTail {
 public:
  void add(std::string_view bytes) {
    text_ += bytes;
    if (text_.size() > 4 * kStderrTailMax) trim();
  }
  void move_into(ProcessExit& ended) {
    trim();
    ended.errors = std::move(text_);
    ended.is_errors_truncated = truncated_;
  }

 private:
  void trim() {
    if (text_.size() <= kStderrTailMax) return;
    text_.erase(0, text_.size() - kStderrTailMax);
    truncated_ = true;
  }
  std::string text_;
  bool truncated_ = false;
};

// The lines of the progress channel: the latest complete one. Lines that are too long are ignored.
class ReportLines {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = std::min(bytes.find('\n'), bytes.size());
      const bool fits = partial_.size() + end <= kProgressMax;
      if (fits) partial_ += bytes.substr(0, end);
      too_long_ = too_long_ || !fits;
      if (end == bytes.size()) return;
      bytes.remove_prefix(end + 1);
      if (!too_long_ && !partial_.empty()) newest_ = std::exchange(partial_, {});
      partial_.clear();
      too_long_ = false;
    }
  }
  std::optional<std::string> take() { return std::exchange(newest_, std::nullopt); }

 private:
  std::string partial_;
  bool too_long_ = false;
  std::optional<std::string> newest_;
};

}  // namespace ae::tools

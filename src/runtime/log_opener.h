// LogOpener: opens the commits of a loaded log one at a time: decoding a long log takes long and
// can be interrupted.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "async/executor.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "log/event.h"
#include "log/seal.h"
#include "store/store.h"

namespace ae::runtime {

class LogOpener {
 public:
  // Opens the commits after event `seq`, whose hash is `head`. Borrows `loaded`.
  LogOpener(const JobId& job, const store::LoadedJob& loaded, ValueLookup lookup,
            std::uint64_t seq = 0, const Hash& head = {});
  LogOpener(const LogOpener&) = delete;
  LogOpener& operator=(const LogOpener&) = delete;

  bool next();  // false: no commit is left, or one failed to open
  // The last event that was opened, and its hash.
  std::uint64_t seq() const { return seq_; }
  const Hash& head() const { return head_; }
  // The events opened since the last call.
  std::vector<Event> take_opened();
  // Fails with log_corrupt, needs_version. REQUIRES: `next` returned false.
  Status complete() const;
  // All events, if none was taken before. Fails as `complete`.
  Result<std::vector<Event>> take();

 private:
  Status open_commit(const std::string& bytes);

  const JobId job_;
  const store::LoadedJob& loaded_;
  const ValueLookup lookup_;
  std::map<Hash, const std::string*> blobs_;  // of `loaded_`
  std::size_t opened_ = 0;                    // commits
  std::uint64_t seq_;
  Hash head_;
  Status status_;
  std::vector<Event> events_;
};

// The error of a read that was interrupted.
Error read_interrupted_error();
// The events of all commits that are left. Fails as LogOpener::take, and with unavailable if it was
// interrupted.
Result<std::vector<Event>> open_all(LogOpener& opener, const async::Interrupt& interrupt);

}  // namespace ae::runtime

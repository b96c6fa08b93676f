// Failpoints: AETHERIS_FAILPOINTS="name=action[@n];…" injects faults at named places (API.md §3).
//
//   exit         the process ends at once, code 137
//   error        `unavailable`, without an effect
//   error_after  takes effect, then `unknown_outcome`
//   pause:ms     sleeps
// Hits count from 1 per name and process; without @n every hit matches. AETHERIS_FAILPOINTS_TRACE=1
// writes one line per hit to stderr, before the action: `failpoint NAME@N`. Inert when neither
// variable is set.
// Threads: `hit` from any; only `pause` blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "async/failpoint.h"
#include "base/error.h"

namespace ae::app {

class Failpoints final : public async::FailpointHandler {
 public:
  // nullptr: neither variable is set. Fails with usage. REQUIRES: `text` and `trace` from the
  // environment, "" = not set.
  static Result<std::unique_ptr<Failpoints>> parse(std::string_view text, std::string_view trace);

  async::FailpointAction hit(std::string_view name) override;

 private:
  enum class Action { exit, error, error_after, pause };
  struct Rule {
    Action action = Action::error;
    std::chrono::milliseconds pause{};
    std::uint64_t at = 0;  // 0 = every hit
  };
  static Result<Rule> parse_rule(std::string_view text);

  std::map<std::string, std::vector<Rule>, std::less<>> rules_;
  bool trace_ = false;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> hits_;  // guarded by mutex_
};

}  // namespace ae::app

// Confirmer: runs the verifiers of changed resources that `decide` wants verified, for one attempt
// of one job (SPEC §8).
//
// Runs a limited number of checks concurrently. An unreachable resource is retried with backoff;
// after the last try the result is `unreachable`. Results are valid for this attempt only: the next
// attempt verifies again. Threads: the loop's.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/heart/decide.h"
#include "runtime/world.h"

namespace ae::runtime {

class Confirmer {
 public:
  // `on_checked` is called after each new entry in `confirmations`. Borrows everything except
  // `on_checked`.
  Confirmer(async::Loop& loop, ToolRegistry& tool_registry, std::function<void()> on_checked);
  ~Confirmer();
  Confirmer(const Confirmer&) = delete;
  Confirmer& operator=(const Confirmer&) = delete;

  // Requests the checks that `decide` returned. `keys`: keys of `State::changes`; a check that is
  // already pending is not started again. `versions`: the versions of the plan's tools that this
  // job uses; a change is checked by the verifier of that version.
  void check(const engine::State& state, const std::vector<std::string>& keys,
             const std::vector<std::string>& versions);
  const engine::Confirmations& confirmations() const { return results_; }

 private:
  struct PendingCheck {
    std::uint64_t seq = 0;
    std::string tool, version;
    Value change;
    std::uint32_t tries = 0;
  };
  void start_next();
  void start(const std::string& key);
  void on_check_result(const std::string& key, std::uint64_t seq, CheckResult check_result);

  async::Loop& loop_;
  ToolRegistry& tool_registry_;
  std::function<void()> on_checked_;
  std::map<std::string, PendingCheck> checks_;  // requested, without a result yet
  std::deque<std::string> queue_;               // keys of `checks_` that have not started
  std::size_t running_ = 0;
  engine::Confirmations results_;
  // Callbacks hold a weak reference, so they do nothing after the Confirmer is destroyed.
  std::shared_ptr<Confirmer*> self_ = std::make_shared<Confirmer*>(this);
};

}  // namespace ae::runtime

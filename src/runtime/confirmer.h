// Confirmer: has those resources looked at that decide wants to be confirmed, for one attempt at one job (SPEC §8).
//
// A few at a time. What cannot be reached is asked for again, with pauses; then that is what was seen. Whatever it has
// seen is of use to this attempt only: the next one looks anew. Threads: the loop's.
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
  // `on_checked` is called when there is something new in `confirmations`. Borrows all but `on_checked`.
  Confirmer(async::Loop& loop, ToolRegistry& tool_registry, std::function<void()> on_checked);
  ~Confirmer();
  Confirmer(const Confirmer&) = delete;
  Confirmer& operator=(const Confirmer&) = delete;

  // What decide asked for: keys of the state's changes. Those under way are not asked for twice. `versions`: of the plan's
  // tools, as this job uses them; a change is checked by the verifier of that version.
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
  void on_result(const std::string& key, std::uint64_t seq, CheckResult sighting);

  async::Loop& loop_;
  ToolRegistry& tool_registry_;
  std::function<void()> on_checked_;
  std::map<std::string, PendingCheck> checks_;  // asked for, and not seen yet
  std::deque<std::string> queue_;               // of them, those that have not begun
  std::size_t running_ = 0;
  engine::Confirmations results_;
  // What is called back when this is gone finds nobody.
  std::shared_ptr<Confirmer*> self_ = std::make_shared<Confirmer*>(this);
};

}  // namespace ae::runtime

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
  // `seen` is called when there is something new in `confirmations`. Borrows all but `seen`.
  Confirmer(async::Loop& loop, Performers& performers, std::function<void()> seen);
  ~Confirmer();
  Confirmer(const Confirmer&) = delete;
  Confirmer& operator=(const Confirmer&) = delete;

  // What decide asked for: keys of the state's changes. Those under way are not asked for twice. `versions`: of the plan's
  // tools, as this job uses them; a change is checked by the verifier of that version.
  void look(const engine::State& state, const std::vector<std::string>& keys,
            const std::vector<std::string>& versions);
  const engine::Confirmations& confirmations() const { return seen_; }

 private:
  struct Look {
    std::uint64_t seq = 0;
    std::string tool, version;
    Value change;
    std::uint32_t tries = 0;
  };
  void more();
  void start(const std::string& key);
  void answered(const std::string& key, std::uint64_t seq, Sighting sighting);

  async::Loop& loop_;
  Performers& performers_;
  std::function<void()> told_;
  std::map<std::string, Look> looks_;  // asked for, and not seen yet
  std::deque<std::string> waiting_;    // of them, those that have not begun
  std::size_t under_way_ = 0;
  engine::Confirmations seen_;
  // What is called back when this is gone finds nobody.
  std::shared_ptr<Confirmer*> self_ = std::make_shared<Confirmer*>(this);
};

}  // namespace ae::runtime

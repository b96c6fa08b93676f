// World: the dependencies that differ between production and simulation.
// Owns nothing; main (or the simulator) constructs them. Threads: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/executor.h"
#include "async/loop.h"
#include "base/ids.h"
#include "base/sign.h"
#include "plan/plan_cache.h"
#include "routines/routine.h"
#include "store/store.h"
#include "tools/tool.h"
#include "tools/verifier.h"

namespace ae::runtime {

class NewJobSource;

class OutputHub;    // driver/output_hub.h
class RunningSlot;  // running_slot.h

// The tools that this process can perform, by their name in the agents file.
class ToolRegistry {
 public:
  struct Entry {
    std::unique_ptr<tools::Tool> tool;
    std::string version;  // digest of the resolved definition (16 hex digits)
    std::unique_ptr<tools::Verifier> verifier = nullptr;  // null: its changes cannot be verified
  };
  void add(std::string name, Entry entry) {
    auto& versions = entries_[std::move(name)];
    versions.clear();
    versions.push_back(std::make_unique<Entry>(std::move(entry)));
  }
  // Replaces a tool for new jobs; running jobs keep their version.
  void renew(std::string name, Entry entry) {
    entries_[std::move(name)].push_back(std::make_unique<Entry>(std::move(entry)));
  }
  // The newest version; nullptr if this process does not offer the tool.
  Entry* find(std::string_view name) {
    auto it = entries_.find(name);
    return it == entries_.end() ? nullptr : it->second.back().get();
  }
  // The newest entry with this version, else the newest of all.
  Entry* find(std::string_view name, std::string_view version) {
    auto it = entries_.find(name);
    if (it == entries_.end()) return nullptr;
    for (auto entry = it->second.rbegin(); entry != it->second.rend(); ++entry) {
      if ((*entry)->version == version) return entry->get();
    }
    return it->second.back().get();
  }
  // All versions of the tool, oldest first.
  std::vector<Entry*> all(std::string_view name) {
    std::vector<Entry*> found;
    if (auto it = entries_.find(name); it != entries_.end()) {
      for (const auto& entry : it->second) found.push_back(entry.get());
    }
    return found;
  }

 private:
  std::map<std::string, std::vector<std::unique_ptr<Entry>>, std::less<>> entries_;
};

struct World {
  async::Loop& loop;
  async::SteadyClock& steady;
  async::RandomSource& random;
  store::Store& store;  // its clock is used for leases, timers and deadlines
  ToolRegistry& tool_registry;
  // Compiled plans, shared with other users of this loop; null: the runtime has its own cache.
  engine::PlanCache* plans = nullptr;
  const SigningKey* signer = nullptr;  // signs the heads of idle jobs; null: no signatures
  OutputHub* output_hub = nullptr;     // buffers partial model output; null: it is discarded
  // Names the job whose slice is running; null: process deaths are not counted
  RunningSlot* slot = nullptr;
  // Runs reads of whole logs; null: they run on the loop.
  async::Executor* readers = nullptr;
  NewJobSource* new_jobs = nullptr;               // makes child jobs; null: their calls fail
  routines::RoutineProvider* routines = nullptr;  // runs the code of jobs; null: none is offered
  // The policy of versions of code, instead of that of each plan
  std::optional<engine::VersionPolicy> code_versions = {};
  // Until then workers may report about calls of an earlier process (DecisionContext)
  std::optional<Instant> functions_held_until = {};
};

// A UUIDv7 with the time of the store.
inline std::string new_uuid(const World& world) {
  return to_text(uuid_v7(static_cast<std::uint64_t>(world.store.now().us / 1000),
                         world.random.next(), world.random.next()));
}

}  // namespace ae::runtime

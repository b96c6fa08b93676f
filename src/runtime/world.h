// World: everything that differs between production and simulation, and nothing else.
// Owns nothing; main (or the simulator) wires it. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/sign.h"
#include "plan/plan_cache.h"
#include "store/store.h"
#include "tools/tool.h"
#include "tools/verifier.h"

namespace ae::runtime {

class OutputHub;    // sayings.h
class RunningSlot;  // running_slot.h

// The tools this process can perform, by their name in the agents file.
class ToolRegistry {
 public:
  struct Entry {
    std::unique_ptr<tools::Tool> tool;
    std::string version;  // digest of the resolved definition (16 hex digits)
    std::unique_ptr<tools::Verifier> verifier = nullptr;  // null: nobody looks at what it changed
  };
  void add(std::string name, Entry entry) {
    auto& versions = entries_[std::move(name)];
    versions.clear();
    versions.push_back(std::make_unique<Entry>(std::move(entry)));
  }
  // What jobs that begin now use; jobs that run keep the version that they have.
  void renew(std::string name, Entry entry) {
    entries_[std::move(name)].push_back(std::make_unique<Entry>(std::move(entry)));
  }
  // The newest one; nullptr when this process does not offer it.
  Entry* find(std::string_view name) {
    auto it = entries_.find(name);
    return it == entries_.end() ? nullptr : it->second.back().get();
  }
  // The newest one of this version, else the newest of all.
  Entry* find(std::string_view name, std::string_view version) {
    auto it = entries_.find(name);
    if (it == entries_.end()) return nullptr;
    for (auto entry = it->second.rbegin(); entry != it->second.rend(); ++entry) {
      if ((*entry)->version == version) return entry->get();
    }
    return it->second.back().get();
  }
  // All versions of it, the oldest first.
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
  store::Store& store;  // its clock is the clock of leases, timers and deadlines
  ToolRegistry& tool_registry;
  // Compiled plans, shared with whoever else runs on this loop; null: the runtime keeps its own.
  engine::PlanCache* plans = nullptr;
  const SigningKey* signer =
      nullptr;                      // signs the heads of jobs that rest; null: they stay unsigned
  OutputHub* output_hub = nullptr;  // keeps what answers say as they come; null: nobody hears it
  RunningSlot* slot = nullptr;      // names the job whose slice runs; null: deaths are not counted
};

}  // namespace ae::runtime

// RegistryCache: the store's registry of keys and agents, as fresh as each caller requires.
//
// It does not poll. A caller gets the cached registry if that is fresh enough; otherwise the newer
// entries are read. Concurrent callers share one read. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "store/registry.h"
#include "store/store.h"

namespace ae::api {

class RegistryCache {
 public:
  using Then = std::move_only_function<void(Status)>;

  // Borrows all arguments. `warn`: called for skipped entries; may be empty.
  RegistryCache(async::SteadyClock& steady, store::Store& store,
                std::function<void(const std::string&)> warn)
      : steady_(steady), store_(store), warn_(std::move(warn)) {}

  // Calls `then` when `registry()` is at most `age` old: inside this call if it already is. A read
  // that starts now has age 0. Fails with the error of the store.
  void refresh_if_older(Duration age, Then then);
  const store::Registry& registry() const { return registry_; }
  // The same for reader threads. Later entries do not change it.
  std::shared_ptr<const store::Registry> copy();
  // Time since the last read; nullopt: never read.
  std::optional<Duration> age() const;
  // Called after a read that found new entries.
  void on_change(std::function<void()> callback) { changed_ = std::move(callback); }

 private:
  void read();
  void on_log_read(Duration began, Result<store::AuditLog> log);

  async::SteadyClock& steady_;
  store::Store& store_;
  std::function<void(const std::string&)> warn_;
  std::function<void()> changed_;
  store::Registry registry_;
  std::shared_ptr<const store::Registry> copy_;   // may be outdated
  std::optional<Duration> read_at_;               // start of the last completed read
  std::optional<Duration> reading_;               // start of the current read
  std::vector<Then> waiting_, waiting_for_next_;  // callers of the current read; of the next one
  async::Alive alive_;
};

}  // namespace ae::api

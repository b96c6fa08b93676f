// RegistryCache: the store's registry of keys and agents, as new as whoever asks needs it.
//
// Nothing is polled: who asks is answered from what is known when that is new enough, else the entries above it are read.
// Questions that come meanwhile share one reading. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "store/registry.h"
#include "store/store.h"

namespace ae::api {

class RegistryCache {
 public:
  using Then = std::move_only_function<void(Status)>;

  // Borrows all. `warn`: about entries that are passed over; may be empty.
  RegistryCache(async::SteadyClock& steady, store::Store& store,
                std::function<void(const std::string&)> warn)
      : steady_(steady), store_(store), warn_(std::move(warn)) {}

  // Goes on when `registry()` is as it was at most `age` ago: at once, inside this call, when it is already; a reading that
  // begins now is 0 old. Fails with what the store said.
  void refresh_if_older(Duration age, Then then);
  const store::Registry& registry() const { return registry_; }
  // Since what is known was read; nullopt: nothing was ever read.
  std::optional<Duration> age() const;
  // Called after a reading that found something new.
  void on_change(std::function<void()> callback) { changed_ = std::move(callback); }

 private:
  void read();
  void on_log_read(Duration began, Result<store::AuditLog> log);

  async::SteadyClock& steady_;
  store::Store& store_;
  std::function<void(const std::string&)> warn_;
  std::function<void()> changed_;
  store::Registry registry_;
  std::optional<Duration> read_at_;               // when the reading of what is known began
  std::optional<Duration> reading_;               // when the one under way began
  std::vector<Then> waiting_, waiting_for_next_;  // who waits for it; for the one after it
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ae::api

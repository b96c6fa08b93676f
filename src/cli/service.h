// Service: the common parts of `serve` and `worker`: options, the run loop, and shutdown.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/instance.h"
#include "app/store_url.h"
#include "base/error.h"
#include "cli/job_lines.h"
#include "cli/notifications.h"
#include "cli/process_options.h"
#include "cli/service_log.h"
#include "cli/terminal.h"
#include "runtime/scheduler/runtime.h"

namespace ae::cli {

struct Address {
  std::string host;
  std::uint16_t port = 0;
};
// HOST:PORT, [::1]:PORT, or a port alone. Fails with usage.
Result<Address> address_of(const std::string& text);

// The validated command line of serve or worker.
struct ServiceSettings {
  app::StoreUrl store;
  std::size_t workers = 0;  // concurrent jobs
  std::vector<store::QueueLimit> limits;
  Duration grace{}, lease{};
  std::optional<Duration> wait_store = Duration(0);  // nullopt = unlimited
  std::optional<app::LoadedAgents> loaded;           // all files merged; nullopt = no files
};
// Returns the exit code after an error was printed.
std::expected<ServiceSettings, int> parse_service_settings(const ServiceOptions& options,
                                                           Terminal& terminal);

class Service final : public runtime::RuntimeObserver {
 public:
  Service(Terminal& terminal, const ServiceOptions& options,
          const ServiceSettings& service_settings);

  // The options for the instance; borrows `service_settings`.
  app::InstanceOptions instance_options(const ServiceOptions& options,
                                        const ServiceSettings& service_settings);
  // Opens the instance. Waits for a PostgreSQL server that is down, up to `wait_store`.
  Result<std::unique_ptr<app::Instance>> open(const app::InstanceOptions& site_options);
  // Runs until a signal or until the store stops. The first signal lets calls in flight finish and
  // releases the jobs; the second ends the process at once.
  int run();
  // Registers the signal handlers; `run` acts on them. REQUIRES: the instance outlives this.
  void attach(app::Instance& instance);
  // Calls `watcher` for each job that this process no longer runs.
  void watch_releases(std::function<void(const JobId&)> watcher) {
    release_watcher_ = std::move(watcher);
  }
  // Shuts down as after the first signal.
  void stop();
  // Prints a line for the user, in every format.
  void announce(const ServiceLog::Line& line) { service_log_.announce(line); }
  void warn(const std::string& what) { on_warning({}, what); }

 private:
  void on_signal(int signal);
  void on_part_stopped();
  bool reads(EventType type) const override;
  void on_events(const JobId& job, const std::vector<Event>& events) override;
  void on_released(const JobId& job, const std::optional<Error>& problem) override;
  void on_warning(const JobId& job, const std::string& what) override;
  void on_store_health(const std::optional<Error>& out) override;
  void on_store_stopped(const Error& error) override;

  Terminal& terminal_;
  ServiceLog service_log_;
  JobLines lines_;
  const std::string notify_, store_flag_;
  const bool logs_;  // --log
  std::function<void(const JobId&)> release_watcher_;
  std::size_t descriptors_ = 0;
  bool starts_programs_ = false;                  // of tools
  std::unique_ptr<Notifications> notifications_;  // none without --notify
  const Duration grace_;
  const std::optional<Duration> wait_store_;
  app::Instance* instance_ = nullptr;
  bool stopping_ = false, is_over_ = false;
  int parts_left_ = 0;  // parts that must stop before we exit
  std::optional<Error> stopped_;
};

}  // namespace ae::cli

// WorkerProcess: a minimal process on a shared PostgreSQL store: a loop, the store, a tool, a
// runtime.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "net/asio_loop.h"
#include "net/system.h"
#include "plan/plan.h"
#include "runtime/scheduler/runtime.h"
#include "store/postgres/postgres_store.h"

namespace ae::bench {

std::int64_t now_us();  // by a steady clock common to all processes of the machine

// An event that a worker writes to a pipe once it is durable.
struct WorkerEvent {
  enum class Kind : std::int64_t { ready, running, waiting, completed };
  Kind kind = Kind::ready;
  std::int64_t at_us = 0;
};
void write_event(int pipe, WorkerEvent::Kind kind);
WorkerEvent read_event(int pipe);
// The time of the next event of this kind; skips others.
std::int64_t await_event(int pipe, WorkerEvent::Kind kind);

class WorkerProcess final : public runtime::RuntimeObserver {
 public:
  struct Options {
    std::string url;
    int event_pipe = -1;  // the pipe for events of jobs; -1: the process claims no jobs
    Duration poll = std::chrono::seconds(5);  // earlier claims are caused by a notification
  };
  explicit WorkerProcess(const Options& options);

  void start() { runtime_->start(); }
  void run() { loop_.run(); }
  // Creates jobs without a lease; returns the id of the last one.
  JobId create_jobs(const std::shared_ptr<const engine::Plan>& plan, int jobs = 1);
  void signal(const JobId& job, const std::string& key);
  store::PostgresStore& store() { return *store_; }
  // Runs the loop until the callback that `start` received has been called.
  void await(const std::function<void(std::function<void()> done)>& start);

 private:
  void create_job(const std::shared_ptr<const engine::Plan>& plan, int& to_start, int& to_end,
                  JobId& last, const std::function<void()>& done);
  void on_events(const JobId&, const std::vector<Event>& events) override;

  const int event_pipe_;
  net::AsioLoop loop_;
  net::SystemClock clock_;
  net::BootClock steady_;
  net::SystemRandom random_;
  std::unique_ptr<store::PostgresStore> store_;
  runtime::ToolRegistry tool_registry_;
  std::optional<runtime::Runtime> runtime_;
};

}  // namespace ae::bench

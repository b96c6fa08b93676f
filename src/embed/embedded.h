// Embedded: the runtime in a process of the user. Its loop runs on a thread of its own.
//
// Tests open it with hooks, and can end its instance as if the process was killed: the next instance
// opens the same store. A request that was open then is sent again.
// Threads: any, unless noted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <aetheris/aetheris.h>
#include "api/api.h"
#include "app/instance.h"
#include "async/loop.h"

namespace aetheris {

class Embedded final : public Aetheris, private ae::runtime::RuntimeObserver {
 public:
  // Called on the thread of the loop; each may be empty.
  struct Hooks {
    std::function<void(ae::app::InstanceOptions&)> adapt;  // before an instance is opened
    std::function<void(ae::app::Instance&)> on_open;
    std::function<void()> on_close;  // before the instance is destroyed
    Value models = {};               // more of them, as an agents file has them; null = none
  };
  Embedded(Settings settings, Hooks hooks)
      : settings_(std::move(settings)), hooks_(std::move(hooks)) {}
  ~Embedded() override;

  // Returns once the runtime has started, or failed to.
  Status begin();
  // Ends the instance and opens the next one. Threads: the loop's.
  void restart();
  // Calls `start` on the thread of the loop, until its `done` is called.
  using Done = ae::async::Done<Result<Value>>;
  Result<Value> call(const std::function<void(ae::app::Instance&, Done done)>& start);

  Result<Value> run(std::string_view agent, const Value& input, const JobOptions& options) override;
  Result<std::string> start(std::string_view agent, const Value& input,
                            const JobOptions& options) override;
  Result<Value> request(std::string_view method, std::string_view path, const Value& body) override;
  Status serve(std::string_view listen) override;

 private:
  struct Answer {
    std::optional<Result<Value>> value;
    bool is_lost = false;  // its instance has ended
  };

  bool reads(ae::EventType) const override { return false; }
  void on_released(const ae::JobId&, const std::optional<ae::Error>&) override;
  std::uint64_t released_jobs();
  void await_release(std::uint64_t before);
  void run_loop(std::optional<Status>& started);
  Status open_instance();
  void replace_instance();
  void post(ae::async::Task task);
  void post_outside_loop(ae::async::Task task);
  Result<Value> send(std::string_view method, ae::api::Path path, ae::api::QueryPairs query,
                     const Value& body, const std::string& idempotency_key = {});

  const Settings settings_;
  const Hooks hooks_;
  ae::app::LoadedAgents loaded_;
  std::thread thread_;
  // Of the loop's thread:
  bool is_stopping_ = false, is_restarting_ = false;
  ae::async::Task outside_loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. The instance is used on the thread of the loop, without the mutex.
  std::unique_ptr<ae::app::Instance> instance_;
  std::set<std::shared_ptr<Answer>> open_;  // shared with the callback of the request
  std::uint64_t released_ = 0;
};

}  // namespace aetheris

// TestProcess: the runtime of a test, on a store in memory that outlives its instances, with a clock
// that the test advances. An instance can be ended at a commit of a job.
//
// Threads: any; one test at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <aetheris/testing.h>
#include "app/clock_control.h"
#include "embed/embedded.h"
#include "embed/model_server.h"
#include "net/system.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"

namespace aetheris::testing {

// Where an instance ends: before or after the commit of this number, from 1, by a holder of a lease.
struct CrashPoint {
  std::uint64_t commit = 0;
  bool is_after = false;
};

// The calls of functions and models. A function can end after its test.
class CallLog {
 public:
  std::size_t add(CallRecord call);
  void end(std::size_t index, const std::expected<Value, Failure>& end);
  std::vector<CallRecord> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CallRecord> calls_;
};

class TestProcess final : public Testing {
 public:
  explicit TestProcess(Options options) : options_(std::move(options)) {}
  ~TestProcess() override;
  Status begin();

  // Counts commits from 0, and ends the instance at this point; nullopt: nowhere.
  void arm(std::optional<CrashPoint> point);
  struct Armed {
    std::uint64_t commits = 0;
    bool has_crashed = false;
  };
  Armed armed() const;

  Result<Value> request(std::string_view method, std::string_view path, const Value& body) override;

 private:
  Result<Value> advance_clock(const Value& body) override;
  std::vector<CallRecord> all_calls() const override { return calls_->all(); }

  Settings settings();
  std::unique_ptr<ae::store::Store> make_store(ae::async::Loop& loop);
  ae::store::Fault fault_of(const ae::store::Call& call);
  ae::routines::FunctionEnded observe(const ae::tools::Call& call);

  const Options options_;
  std::map<std::string, Effect> effects_;  // of the tools
  std::optional<ModelServer> models_;
  ae::net::BootClock steady_;
  ae::net::SystemClock clock_;
  // Of the loop's thread:
  ae::app::VirtualClock virtual_clock_{clock_};
  ae::store::MemoryDisk disk_;
  std::unique_ptr<ae::store::MemoryStore> memory_;
  std::optional<ae::app::ClockControl> clock_control_;
  const std::shared_ptr<CallLog> calls_ = std::make_shared<CallLog>();
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::optional<CrashPoint> point_;
  Armed armed_;
  std::optional<Embedded> runtime_;  // destroyed first
};

}  // namespace aetheris::testing

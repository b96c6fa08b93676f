// DeterminismChecks: checks the code of `dev` against the log of each job that waits or has ended.
//
// The worker that runs the job replays it (runtime/service/code_check.h). A difference comes from the
// code itself: a time, a random number or an id that is not recorded, or an order that is not the same
// each time. Each job is checked when it first waits and when it has ended, one at a time.
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "app/instance.h"
#include "async/alive.h"
#include "base/ids.h"
#include "runtime/service/code_check.h"

namespace ae::cli {

class DeterminismChecks {
 public:
  // Borrows the instance. `print`: for the user.
  DeterminismChecks(app::Instance& instance, std::function<void(const std::string& line)> print);
  ~DeterminismChecks();
  DeterminismChecks(const DeterminismChecks&) = delete;
  DeterminismChecks& operator=(const DeterminismChecks&) = delete;

  // This process no longer runs the job.
  void on_released(const JobId& job);
  // Other code is in use: jobs that wait for their check ran under code that is gone.
  void on_new_code();

 private:
  void start_next();
  bool is_due(const store::JobRow& row);
  void read_log(const JobId& job);
  bool start(const JobId& job, const store::LoadedJob& loaded);
  void on_finding(const JobId& job, const runtime::CodeFinding& finding);

  app::Instance& instance_;
  const std::function<void(const std::string& line)> print_;
  std::deque<JobId> waiting_;
  std::set<std::string> checked_;  // ids of jobs that were checked while they wait
  bool is_busy_ = false;
  std::uint64_t code_ = 0;  // counts on_new_code
  std::unique_ptr<runtime::CodeCheck> running_;
  async::Alive alive_;
};

}  // namespace ae::cli

// JobRun: a process that owns a store, recovers its unfinished jobs, and runs one job until it is
// idle.
//
// Idle: ended, or blocked on something other than a timer. It prints progress and makes no
// decisions about jobs. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/instance.h"
#include "cli/notifier.h"
#include "cli/terminal.h"
#include "runtime/scheduler/runtime.h"

namespace ae::cli {

class JobRun final : public runtime::RuntimeObserver {
 public:
  struct Options {
    bool only = false;     // do not wait for recovered jobs
    bool verbose = false;  // a line per step, also without a terminal
    Duration grace = std::chrono::seconds(10);
    app::StoreUrl store;                        // for commands that unblock a job
    std::set<std::string, std::less<>> agents;  // recover only their jobs
    std::string notify = {};                    // a program to notify of open questions
    bool has_only_option = true;                // this command has the option --only
    std::size_t descriptors = 0;                // limit for the program; 0 = our own
  };
  JobRun(Terminal& terminal, Options run_options);

  // Sets the instance. REQUIRES: called before it runs.
  void attach(app::Instance& instance) { instance_ = &instance; }
  // As Options::agents.
  void set_agents(std::set<std::string, std::less<>> agents) {
    options_.agents = std::move(agents);
  }
  // The job cannot continue in this process: `problem`.
  void fail(Error problem);
  // Runs until `job` and the recovered ones are idle, or until a signal. Returns the signal's
  // number, or 0.
  int run_until_idle(const JobId& job);
  // The reason that this process could not run the job, if any.
  const std::optional<Error>& problem() const { return problem_; }

 private:
  void on_events(const JobId& job, const std::vector<Event>& events) override;
  void on_released(const JobId& job, const std::optional<Error>& problem) override;
  void on_warning(const JobId& job, const std::string& what) override;
  void on_store_health(const std::optional<Error>& out) override;
  void on_store_stopped(const Error& error) override;

  void schedule_check();
  void check_job();
  void on_job_read(const runtime::Runtime::JobSnapshot& read);
  void check_other_jobs();
  void find_runnable_jobs();
  void print_resumed_jobs();
  bool is_ours(const store::JobRow& row) const;
  void check_again_after(Duration wait);
  void finish();
  void stop_runtime();
  std::string calls_in_flight() const;
  void on_signal(int signal);
  void on_event_of_another(const JobId& job, const Event& event);
  void print_blocked_job(const JobId& job);
  void print_notify_failures();
  void print_partial_output();
  void print_progress(const Event& event);
  void record_call(const ToolInvocationStarted& started);
  void print_finished(const Event& event);
  void print_wait(const WaitOpened& wait);
  // The plan location of an event's step, and what a part of a map or loop calls.
  struct Place {
    std::string name;      // "labels[1]", "chat", "refund items/0/charge"
    std::string part;      // "make_label {…}", "turn 2: model main"; "" = a whole node
    bool turn = false;     // of a loop
    bool request = false;  // of code
  };
  Place place_of(const std::string& node, const std::string& step) const;
  void step_line(Tint tint, const char* mark, const std::string& node, const std::string& what);

  Terminal& terminal_;
  Options options_;
  app::Instance* instance_ = nullptr;
  Notifier notifier_;
  JobId job_;
  bool is_checking_ = false, check_again_ = false, is_check_scheduled_ = false, finished_ = false,
       stopping_ = false;
  int signal_ = 0;
  std::optional<Error> problem_;
  std::optional<async::TimerId> timer_;
  std::set<JobId> unrunnable_;     // jobs that this process cannot run
  std::set<JobId> recovered_;      // other jobs with events since our start
  std::set<JobId> created_here_;   // … created here by other commands
  std::set<JobId> blocked_;        // … waiting or parked, not printed yet
  std::size_t blocked_reads_ = 0;  // concurrent reads of blocked jobs
  std::uint64_t commits_ = 0;      // of this process, since the start
  int due_checks_ = 0;             // since the last one

  // Printed bytes of partial output, by call and try; on a terminal only.
  std::shared_ptr<void> output_subscription_;
  std::map<std::pair<InvocationId, std::uint32_t>, std::size_t> printed_;

  std::map<std::string, Instant, std::less<>> steps_;      // start of each
  std::map<std::string, std::string, std::less<>> calls_;  // called tool and arguments, by step
};

}  // namespace ae::cli

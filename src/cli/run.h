// Run: one process that owns a store, recovers what is unfinished in it, and sees one job to its rest.
//
// "Rest" is an end, or a block that only somebody else can lift: a timer is waited for. It tells what it sees as it
// goes on; it decides nothing about jobs. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/site.h"
#include "cli/notifier.h"
#include "cli/terminal.h"
#include "runtime/runtime.h"

namespace ae::cli {

class Run final : public runtime::RuntimeObserver {
 public:
  struct Wishes {
    bool only = false;     // do not wait for recovered jobs
    bool verbose = false;  // a line for each step, also without a terminal
    Duration grace = std::chrono::seconds(10);
    app::StoreUrl store;                        // for the commands that answer a blocked job
    std::set<std::string, std::less<>> agents;  // whose jobs are recovered
    std::string notify = {};                    // a program that is told what waits for a person
    bool offers_only = true;                    // the command that runs this takes --only
    std::size_t descriptors = 0;                // how many it may have open; 0 = as many as we
  };
  Run(Terminal& terminal, Wishes wishes);

  // The site that this observes. REQUIRES: before anything is run on it.
  void attach(app::Site& site) { site_ = &site; }
  // Runs until `job` and the recovered ones rest, or a signal ends it. The signal's number, 0 without.
  int see_through(const JobId& job);
  // Why this process could not run the job, if it could not.
  const std::optional<Error>& problem() const { return problem_; }

 private:
  void on_events(const JobId& job, const std::vector<Event>& events) override;
  void on_released(const JobId& job, const std::optional<Error>& problem) override;
  void on_warning(const JobId& job, const std::string& what) override;
  void on_store(const std::optional<Error>& out) override;
  void on_store_stopped(const Error& error) override;

  void look_soon();
  void look();
  void looked(const runtime::Runtime::Read& read);
  void look_at_others();
  void say_older();
  bool is_ours(const store::JobRow& row) const;
  void again(Duration wait);
  void finish();
  void leave();
  void interrupted(int signal);
  void on_event_of_another(const JobId& job, const Event& event);
  void say_rest(const JobId& job);
  void say_untold();
  void say_pieces();
  void tell(const Event& event);
  void tell_call(const Value& started);
  // Where an event's step is in the plan, and what a part of a map or a loop calls.
  struct Place {
    std::string name;   // "labels[1]", "chat"
    std::string part;   // "make_label {…}", "turn 2: model main"; empty: a whole node
    bool turn = false;  // of a loop
  };
  Place place_of(const std::string& node, const std::string& step) const;
  void step_line(Tint tint, const char* mark, const std::string& node, const std::string& what);

  Terminal& terminal_;
  const Wishes wishes_;
  app::Site* site_ = nullptr;
  Notifier notifier_;
  JobId job_;
  bool looking_ = false, look_again_ = false, soon_ = false, finished_ = false, stopping_ = false;
  int signal_ = 0;
  std::optional<Error> problem_;
  std::optional<async::TimerId> timer_;
  std::set<JobId> cannot_;     // jobs that this process cannot run
  std::set<JobId> recovered_;  // others that moved while we were here
  std::set<JobId> handed_;     // … that other commands created here
  std::set<JobId> blocked_;    // of them: waiting or parked, not told yet
  std::size_t saying_ = 0;     // reads of blocked ones under way

  // What answers say as they come, on a terminal: how much of it is told, by call and try.
  std::shared_ptr<void> hears_;
  std::map<std::pair<InvocationId, std::uint32_t>, std::size_t> told_;

  std::map<std::string, Instant, std::less<>> steps_;      // when each began
  std::map<std::string, std::string, std::less<>> calls_;  // by step: what is called, with what
};

}  // namespace ae::cli

// NativeJob: a job with one code node for tests. It does what a job's driver does: decides, performs
// calls, records advances, delivers outcomes. The engine is the real one; the store is the log in
// memory.
//
//   NativeWorld world;
//   world.add([](Context& ctx, const Value& input) { return ctx.call("ask", input); });
//   NativeJob job(world);
//   job.run();                      // until it ends, or only the test can act
//   job.answer("ask", "{'n':1}");   // the outcome of a call that the test performs
//   EXPECT_EQ(job.status(), "completed");
//
// For tests only. Threads: the test's.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/code/code.h"
#include "engine/fixtures/job_log_test.h"
#include "engine/heart/control_request.h"
#include "engine/heart/decide.h"
#include "engine/heart/routine.h"
#include "routines/native/native_world_test.h"
#include "routines/routine.h"

namespace ae::routines::testing {

class NativeJob : public engine::testing::JobLog, public RoutineClient {
 public:
  // A call that the test performs.
  struct RemoteCall {
    StepId step;
    std::string position, tool;
    Value args;
  };

  explicit NativeJob(NativeWorld& world, std::shared_ptr<const engine::Plan> of = agent_plan(),
                     std::string_view input = "{}", std::string_view id = "job-1");
  // The job with the first `events` of this log, claimed by a new process.
  NativeJob(NativeWorld& world, const NativeJob& other, std::size_t events);
  ~NativeJob() override { routine_.reset(); }

  // ---- what happens to it

  // Runs until the job has ended or only the test can act.
  void run();
  // The same, and answers calls, timers and waits: `choose` gets how many there are, and chooses.
  // The result of a call is its arguments; it fails if they have {"fails": true}.
  void run_to_end(const std::function<std::size_t(std::size_t)>& choose);
  // The outcome of a call that the test performs.
  void answer(std::string_view position, std::string_view result);
  void answer(std::string_view position, const Outcome& outcome);
  // Answers the wait of the request at this position.
  void signal(std::string_view position, std::string_view payload);
  void message(std::string_view channel, std::string_view payload);
  void request(const engine::ControlRequest& control);
  void after(Duration by);
  // The process dies: what is not committed is lost, calls in flight never return.
  void crash();
  // The routine is dropped; calls of its functions run on.
  void lose_routine();
  void start_routine();

  // ---- what the test looks at

  bool is_over() const { return is_terminal(state.status) || divergence || lost; }
  // The routine has settled, and nothing is on its way to it.
  bool is_idle() const;
  const engine::Step* find(std::string_view position) const;  // the request; nullptr: there is none
  std::string wait_key(std::string_view position) const;
  // The positions of all requests, in the order of their starts.
  std::vector<std::string> positions() const;
  std::string result() const { return canonical(state.result); }
  Routine* routine() { return routine_.get(); }

  std::deque<RemoteCall> remote;  // calls that wait for the test
  std::optional<Divergence> divergence;
  std::optional<Error> lost;
  std::vector<Outcome> late;       // of calls that had ended
  std::vector<Outcome> forgotten;  // of calls of a routine that was lost
  int advances = 0;
  bool keeps_routine = true;  // while the job is suspended
  // Commits until the process dies, instead of one more.
  std::optional<int> commits_left;

  // ---- of its routine

  void on_advance(std::uint32_t node, Advance advance) override;
  void on_diverged(std::uint32_t node, Divergence found) override;
  void on_lost(std::uint32_t node, Error why) override;
  void on_refused(std::uint32_t node, Error why) override;

 private:
  engine::ControlRequest answer_of(const std::string& key, const engine::Wait& wait);
  engine::DecisionContext context();
  void claim();
  void decide_all();
  void update_settled();
  bool commit_all();
  void deliver();
  void perform(const StepId& id);
  void perform_function(const StepId& id);

  NativeWorld& world_;
  std::unique_ptr<Routine> routine_;
  engine::Routines routines_;
  std::set<std::uint32_t> given_;  // steps whose outcomes the routine has been given
  std::set<StepId> in_flight_;     // calls of functions
  const std::string execution_version_ = "v1";
  bool is_recording_ = false, settled_ = false;
  std::uint64_t delivered_ = 0;
  int attempts_ = 0, signals_ = 0, generation_ = 0;
};

}  // namespace ae::routines::testing

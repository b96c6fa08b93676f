#include "sim/sim_code.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <set>
#include <utility>
#include <variant>

#include "async/alive.h"
#include "sim/code_run.h"

namespace ae::sim {

using namespace std::chrono_literals;

Duration ExternalWorld::think() { return host_.random.between(0ms, 5ms); }

bool ExternalWorld::cuts_session() {
  const bool cuts = host_.random.one_in(odds_.cut);
  if (cuts) host_.report.mark("code.session_lost");
  return cuts;
}

void ExternalWorld::on_diverged(const JobId& job, const std::string& position) {
  host_.report.violate("K1 unchanged code makes its recorded requests again", job, position);
}

// The routine of one job in one process.
class SimRoutine final : public routines::Routine, private tools::Tool {
 public:
  SimRoutine(SimCode& code, routines::RoutineStart start)
      : code_(code),
        start_(std::move(start)),
        run_({.plan = start_.plan,
              .node = start_.node,
              .input = start_.input,
              .blind = start_.blind,
              .is_blind_erased = start_.is_blind_erased,
              .now = code.external_world_.now()},
             std::move(start_.record)) {
    schedule();
  }
  ~SimRoutine() override {
    for (Arrived& one : arrived_) {
      if (auto* const success = std::get_if<Success>(&one)) finish(std::move(success->end));
    }
  }

  void deliver(std::vector<engine::Delivery> outcomes) override {
    for (engine::Delivery& outcome : outcomes) arrived_.emplace_back(std::move(outcome));
    schedule();
  }
  tools::Tool& functions() override { return *this; }

 private:
  struct Success {  // of a function
    std::string position;
    routines::FunctionEnd end;
  };
  using Arrived = std::variant<engine::Delivery, Success>;

  // ---- functions

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    const auto function = code_.functions_.find(call.tool);
    AE_CHECK(function != code_.functions_.end(), call.tool);
    calls_.emplace(call.invocation.text, call.try_no);
    std::string at = call.position;
    function->second->perform(
        std::move(permit), std::move(call),
        [this, alive = alive_.watch(), position = std::move(at),
         done = std::move(done)](Outcome outcome) mutable {
          routines::FunctionEnd end{.done = std::move(done), .outcome = std::move(outcome)};
          const bool is_success = end.outcome.kind == OutcomeKind::success && !end.outcome.invalid;
          if (!alive || !is_success || !run_.is_open(position)) {
            return end.done(std::move(end.outcome));  // the engine decides what follows
          }
          arrived_.emplace_back(Success{std::move(position), std::move(end)});
          schedule();
        });
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    for (const auto& [name, function] : code_.functions_) function->abandon(invocation, try_no);
  }
  void finish(routines::FunctionEnd end) {
    code_.process_->post([end = std::move(end)]() mutable { end.done(std::move(end.outcome)); });
  }

  // ---- the run

  void schedule() {
    if (std::exchange(is_scheduled_, true)) return;
    code_.process_->after(code_.external_world_.think(), [this, alive = alive_.watch()] {
      if (alive) go_on();
    });
  }

  // One delivery, or the way to the frontier. The client may destroy the routine.
  void go_on() {
    is_scheduled_ = false;
    if (code_.external_world_.cuts_session()) return cut_off();
    if (!is_live_) {
      if (!run_.replay()) return diverge();
      is_live_ = true;
    } else if (run_.end_scope()) {
    } else if (!arrived_.empty()) {
      Arrived next = std::move(arrived_.front());
      arrived_.pop_front();
      if (auto* const outcome = std::get_if<engine::Delivery>(&next)) {
        run_.deliver(*outcome);
      } else {
        give(std::get<Success>(std::move(next)));
      }
    } else {
      return;
    }
    send();
  }

  void give(Success success) {
    if (!run_.is_open(success.position)) return finish(std::move(success.end));
    success.end.outcome.delivered = run_.delivered();
    engine::Delivery outcome{.position = success.position};
    outcome.result = success.end.outcome.result;
    ends_.push_back(std::move(success.end));
    run_.deliver(outcome);
  }

  void send() {
    const bool has_more = !arrived_.empty() || run_.has_ended_scope();
    routines::Advance advance{.delivered = run_.delivered(),
                              .has_settled = !has_more,
                              .functions = std::exchange(ends_, {}),
                              .recorded = std::exchange(run_.recorded, {}),
                              .requests = std::exchange(run_.requests, {}),
                              .cancelled = std::exchange(run_.cancelled, {}),
                              .end = {}};
    std::erase_if(advance.cancelled, [&](const auto& position) { return !run_.is_open(position); });
    if (run_.end && !std::exchange(has_ended_, true)) advance.end = run_.end;
    if (has_more) schedule();
    start_.client->on_advance(start_.node, std::move(advance));
  }

  // As a worker whose session is lost: what it performs has no known end.
  void cut_off() {
    for (const auto& [invocation, try_no] : std::exchange(calls_, {})) {
      abandon(InvocationId(invocation), try_no);
    }
    start_.client->on_lost(start_.node, Error{Code::unavailable, "the session was lost"});
  }
  void diverge() {
    code_.external_world_.on_diverged(start_.job, run_.divergence()->position);
    start_.client->on_diverged(start_.node, *run_.divergence());
  }

  SimCode& code_;
  routines::RoutineStart start_;
  CodeRun run_;
  std::deque<Arrived> arrived_;
  std::vector<routines::FunctionEnd> ends_;
  std::set<std::pair<std::string, std::uint32_t>> calls_;  // invocation, try
  bool is_live_ = false, is_scheduled_ = false, has_ended_ = false;
  async::Alive alive_;
};

SimCode::SimCode(ExternalWorld& external_world, std::shared_ptr<SimProcess> process)
    : external_world_(external_world), process_(std::move(process)) {
  for (const ToolKind& kind : kFunctions) {
    functions_.emplace(std::string(kind.name), external_world.tool(kind, process_));
  }
}

engine::OfferedCode SimCode::offered(const engine::Plan&, std::uint32_t,
                                     std::string_view own) const {
  return {.versions = {std::string(own)}};
}

std::unique_ptr<routines::Routine> SimCode::start(routines::RoutineStart start) {
  return std::make_unique<SimRoutine>(*this, std::move(start));
}

}  // namespace ae::sim

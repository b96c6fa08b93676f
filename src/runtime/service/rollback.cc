#include "runtime/service/rollback.h"

#include <fmt/core.h>

#include <memory>
#include <utility>
#include <vector>

namespace ae::runtime {
namespace {

constexpr std::size_t kRollbackPage = 100;

// Iterates over the jobs of one status after the other, newest first. Parked jobs come first, so
// that no job is processed twice.
class RollbackParker : public std::enable_shared_from_this<RollbackParker> {
 public:
  RollbackParker(store::Store& store, JobReader& reader, SubmitRequest submit, std::string by,
                 std::string token, async::Done<Result<ParkResult>> done)
      : store_(store),
        reader_(reader),
        submit_(std::move(submit)),
        by_(std::move(by)),
        token_(std::move(token)),
        done_(std::move(done)) {}

  void load_page() {
    if (statuses_.empty()) return done_(result_);
    filter_.statuses = {statuses_.back()};
    filter_.limit = kRollbackPage;
    store_.query(filter_, [self = shared_from_this()](Result<std::vector<store::JobRow>> rows) {
      if (!rows) return self->done_(std::unexpected(rows.error()));
      self->rows_ = std::move(*rows);
      self->next_ = 0;
      self->park();
    });
  }

 private:
  void park() {
    if (next_ < rows_.size()) return check_repeatable(rows_[next_++].id);
    if (rows_.size() < kRollbackPage) {
      statuses_.pop_back();
      filter_.after.clear();
      filter_.after_number.reset();
    } else {
      filter_.after = rows_.back().id.text;
      filter_.after_number = rows_.back().number;
    }
    load_page();
  }

  void park_one(const JobId& job) {
    engine::ControlRequest request{
        .id = "rolled-back-" + token_,
        .by = by_,
        .body = engine::PauseRequest{.reason = std::string(code_name(Code::store_rolled_back))}};
    submit_(job, std::move(request), [self = shared_from_this(), job](Result<Value> answer) {
      if (!answer && answer.error().code == Code::job_terminal) {
        self->result_.ending++;
      } else if (!answer) {
        return self->done_(std::unexpected(
            std::move(answer).error().with_context(fmt::format("job {}", job.text))));
      } else if (answer->find("paused") != nullptr || self->filter_.statuses.front() == "parked") {
        self->result_.parked++;
      } else {
        self->result_.pausing++;
      }
      self->park();
    });
  }

  // Reads the job before it is parked, so that the last event is one that the rolled-back store
  // had.
  void check_repeatable(const JobId& job) {
    if (result_.may_repeat.size() == kRepeatJobsMax) {
      result_.more = true;
      return park_one(job);
    }
    reader_.read_state<RepeatableCalls>(
        job,
        [](JobSnapshot& read) -> Result<RepeatableCalls> { return repeatable_calls(read.state); },
        [self = shared_from_this(), job](Result<RepeatableCalls> found) {
          // The pause request reports an error of the log.
          if (found && !found->calls.empty()) {
            self->result_.may_repeat.push_back(*std::move(found));
          }
          self->park_one(job);
        });
  }

  store::Store& store_;
  JobReader& reader_;
  const SubmitRequest submit_;
  const std::string by_, token_;
  async::Done<Result<ParkResult>> done_;
  std::vector<std::string> statuses_{"running", "queued", "waiting", "parked"};
  store::Filter filter_;
  std::vector<store::JobRow> rows_;
  std::size_t next_ = 0;
  ParkResult result_;
};

}  // namespace

RepeatableCalls repeatable_calls(const engine::State& state) {
  RepeatableCalls found{.job = state.job, .seq = state.seq, .at = state.updated_at, .calls = {}};
  if (!state.plan) return found;
  const engine::Plan& plan = *state.plan;
  const auto add = [&](const engine::Node& node, std::uint32_t index) {
    const engine::ToolPolicy& tool = plan.tools[index];
    if (tool.is_model() || tool.effect == engine::EffectClass::read) return;
    if (found.calls.size() == kRepeatCallsMax) {
      ++found.more;
      return;
    }
    found.calls.push_back(fmt::format("{} ({}, {})", node.id, tool.name, to_text(tool.effect)));
  };
  for (const engine::Node& node : plan.nodes) {
    if (state.steps[node.index].result_type != engine::ResultType::none) continue;
    if (node.is_single_call() || node.kind == engine::NodeKind::map) add(node, node.tool);
    if (node.code) {
      for (const std::uint32_t tool : node.code->tools) add(node, tool);
    }
    if (!node.loop) continue;
    for (const std::uint32_t tool : node.loop->tools) add(node, tool);
    for (const std::uint32_t tool : node.loop->planner_tools) add(node, tool);
  }
  return found;
}

void park_rolled_back(store::Store& store, JobReader& reader, SubmitRequest submit, std::string by,
                      std::string token, async::Done<Result<ParkResult>> done) {
  std::make_shared<RollbackParker>(store, reader, std::move(submit), std::move(by),
                                   std::move(token), std::move(done))
      ->load_page();
}

}  // namespace ae::runtime

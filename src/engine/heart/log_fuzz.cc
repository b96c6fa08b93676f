// Fuzzes the fold: any well-formed events, in any order, are either a log or rejected. The
// resulting state can be displayed, verified, decided on and stored as a checkpoint. An attacker
// with write access to the store can write any log, including its hash chain.
//
// The input edits the log of FuzzJob: the number of its events that stay unchanged, then for each
// further event the event it copies, and optionally a member of the payload to replace.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/fixtures/job_fixture_fuzz.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/field_names.h"

namespace {

namespace engine = ae::engine;

struct SeedJob {
  engine::FuzzJob job;
  std::vector<ae::Value> values;

  SeedJob() {
    job.finish();
    values = {{},
              true,
              0,
              1,
              -1,
              70'000,
              (std::int64_t{1} << 53) - 1,
              "",
              "resume",
              "resolve",
              "in_doubt",
              "2023-11-14T22:13:20.000000Z",
              "9999-12-31T23:59:59.999999Z",
              std::string(64, '0'),
              std::string(16, '0'),
              ae::Value::array({}),
              ae::Value::array({1, "x", {}}),
              ae::Value::object({}),
              ae::Value::object({{ae::field::error,
                                  ae::Value::object({{ae::field::code, "x"}, {"message", "y"}})}})};
    for (const engine::Step& step : job.state.steps) {
      values.emplace_back(step.id.text);
      if (step.call) {
        values.emplace_back(step.call->id.text);
        values.emplace_back(step.call->key.text);
      }
    }
    for (const engine::Node& node : job.state.plan->nodes) values.emplace_back(node.id);
    for (const ae::Event& event : job.log) {
      const ae::Value payload = ae::payload_json(event.body);
      for (const auto& [name, value] : payload.members()) values.push_back(value);
    }
  }
};

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool left() const { return at_ < size_; }
  std::size_t below(std::size_t n) {  // REQUIRES: n > 0
    std::size_t drawn = left() ? data_[at_++] : 0;
    if (n > 256) drawn = drawn * 256 + (left() ? data_[at_++] : 0);
    return drawn % n;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

void exercise_state(const engine::State& state, const std::vector<ae::Event>& log) {
  const ae::Value view = engine::state_view(state);
  static_cast<void>(engine::job_view(state));
  static_cast<void>(engine::approvals_view(state));
  static_cast<void>(engine::trace_view(state, log));
  static_cast<void>(state.next_due());
  if (!state.plan) return;
  const std::string bytes = engine::checkpoint(state, ae::Hash{});
  const auto restored =
      engine::restore(state.job, state.seq, bytes, engine::uncached_plan_source());
  AE_CHECK(restored.has_value(), restored ? "" : restored.error().message);
  AE_CHECK(engine::state_view(restored->state) == view, ae::canonical(view));
  AE_CHECK(engine::checkpoint(restored->state, ae::Hash{}) == bytes, ae::canonical(view));
  if (engine::is_terminal(state.status)) return;
  const ae::Instant now = log.back().created_at;
  static_cast<void>(
      engine::decide(state, {.now = now, .lease_until = now + std::chrono::seconds(30)}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const SeedJob seed;
  const std::vector<ae::Event>& events = seed.job.log;
  const engine::PlanSource plans =
      [](const ae::Value& graph,
         std::string_view hash) -> ae::Result<std::shared_ptr<const engine::Plan>> {
    if (hash == ae::to_hex(seed.job.state.plan->hash)) return seed.job.state.plan;
    return engine::Plan::compile(graph);
  };
  FuzzInput input_bytes(data, size);
  std::vector<ae::Event> log(
      events.begin(),
      events.begin() + static_cast<std::ptrdiff_t>(input_bytes.below(events.size() + 1)));
  while (input_bytes.left() && log.size() < 2 * events.size()) {
    ae::Event event = events[input_bytes.below(events.size())];
    ae::Value payload = ae::payload_json(event.body);
    if (input_bytes.below(2) == 1 && payload.size() > 0) {
      const auto members = payload.members();
      const std::string name = members[input_bytes.below(members.size())].first;
      payload = payload.with(name, seed.values[input_bytes.below(seed.values.size())]);
    }
    auto body = ae::event_from_json(*ae::event_kind(event.type), payload);
    if (!body) continue;
    event.body = *std::move(body);
    event.seq = log.size() + 1;
    log.push_back(std::move(event));
  }
  engine::State state;
  state.job = seed.job.state.job;
  std::vector<ae::Event> applied;
  bool whole = true;
  for (const ae::Event& event : log) {
    whole = engine::apply(state, event, plans).has_value();
    if (!whole) break;
    applied.push_back(event);
  }
  engine::VerifyInput input{.job = state.job};
  input.events = log;
  static_cast<void>(engine::verify(input, plans).to_json());
  // A state that rejected an event is unusable (state.h).
  if (whole && !applied.empty()) exercise_state(state, applied);
  return 0;
}

#include "runtime/service/code_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/code/code.h"
#include "engine/code/request_code.h"
#include "engine/version/code_version.h"
#include "inspect/code_end.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::runtime {
std::string_view to_text(CodeVerdict verdict) {
  constexpr std::array<std::string_view, 4> kTexts = {"continues", "diverges", "fails",
                                                      "not_judged"};
  return kTexts[static_cast<std::size_t>(verdict)];
}

CodeCheck::CodeCheck(Parts parts, async::Done<CodeFinding> done)
    : parts_(std::move(parts)), done_(std::move(done)) {
  finding_.compares_arguments = !parts_.recorded.state.blind_erased;
  start();
}

CodeCheck::~CodeCheck() {
  if (timer_) parts_.loop.cancel(*timer_);
}

bool CodeCheck::choose_version() {
  const engine::State& state = parts_.recorded.state;
  const std::uint32_t node = *parts_.recorded.node;
  const std::string& own = engine::version_of_code(state, node);
  const auto offered = parts_.provider.offered(*state.plan, node, own);
  if (!offered.versions.empty() && !parts_.version) finding_.version = offered.versions.back();
  if (parts_.version && offered.has(*parts_.version)) finding_.version = *parts_.version;
  if (finding_.version) return true;
  const engine::CodeSpec& code = *state.plan->nodes[node].code;
  const auto agents = parts_.provider.agent_versions();
  const bool is_known =
      std::ranges::find(agents, code.agent, &routines::AgentVersion::agent) != agents.end();
  std::string functions;
  for (const std::uint32_t index : code.tools) {
    const engine::ToolPolicy& tool = state.plan->tools[index];
    if (!tool.function || tool.is_stated_in_code()) continue;
    functions += fmt::format("{}{}", functions.empty() ? "" : ", ", tool.name);
  }
  finish(CodeVerdict::not_judged,
         !is_known ? fmt::format("no worker offers the agent {}", code.agent)
         : parts_.version
             ? fmt::format("no worker offers the version \"{}\"", *parts_.version)
             : fmt::format("no worker has all functions of the job's plan: {}", functions));
  return false;
}

bool CodeCheck::has_erased_values(const engine::CodeRecord& record) const {
  const auto* const created = parts_.events.empty() ? nullptr : as<JobCreated>(parts_.events[0]);
  return (created != nullptr && created->input.erased) ||
         std::ranges::any_of(record.deliveries, &engine::Delivery::erased);
}

void CodeCheck::start() {
  const engine::State& state = parts_.recorded.state;
  if (!parts_.recorded.node) return finish(CodeVerdict::continues);
  const std::uint32_t node = *parts_.recorded.node;
  if (!choose_version()) return;
  engine::CodeRecord record = engine::record_of(state, parts_.recorded.code());
  finding_.requests = record.requests.size();
  if (has_erased_values(record)) {
    return finish(CodeVerdict::not_judged, "values that the code was given are erased");
  }
  routine_ = parts_.provider.start({.job = state.job,
                                    .node = node,
                                    .plan = state.plan,
                                    .path = state.path_of(parts_.recorded.code()),
                                    .version = *finding_.version,
                                    .is_trial = true,  // it changes nothing
                                    .is_check = true,
                                    .input = state.input,
                                    .job_value = state.job_root,
                                    .blind = state.blind,
                                    .is_blind_erased = state.blind_erased,
                                    .record = std::move(record),
                                    .client = this});
  if (!routine_) return finish(CodeVerdict::not_judged, "no worker has room for its code");
  timer_ = parts_.loop.after(parts_.timeout, [this] {
    timer_.reset();
    finish(CodeVerdict::not_judged,
           fmt::format("the code did not settle within {}", ae::to_text(parts_.timeout)));
  });
}

// A routine is not destroyed from within its own call.
void CodeCheck::finish(CodeVerdict verdict, std::string reason) {
  if (std::exchange(is_finished_, true)) return;
  finding_.verdict = verdict;
  finding_.reason = std::move(reason);
  if (timer_) parts_.loop.cancel(*std::exchange(timer_, std::nullopt));
  parts_.loop.post([this, alive = alive_.watch()] {
    if (!alive) return;
    routine_.reset();
    auto done = std::move(done_);  // it may destroy this
    done(std::move(finding_));
  });
}

void CodeCheck::on_diverged(std::uint32_t, Divergence divergence) {
  if (is_finished_) return;
  const engine::Step& code = parts_.recorded.code();
  RoutineDiverged diverged{
      .detail = divergence, .node_id = parts_.recorded.state.node_of(code).id, .step_id = code.id};
  if (!finding_.version->empty()) diverged.version = *finding_.version;
  finding_.divergence = engine::divergence_view(
      parts_.recorded.state, std::span(parts_.events).first(parts_.recorded.events), diverged);
  finish(CodeVerdict::diverges);
}

// The log has the end of the code: does it end so again? `end`: nullptr: it goes on.
bool CodeCheck::ends_as_recorded(const engine::RoutineEnd* end) const {
  const NodeFinished& recorded = *parts_.recorded.end;
  if (recorded.error) {
    // Other reasons than the code may have ended it.
    return end == nullptr || end->exception ||
           (end->failure && end->failure->code == recorded.error->code);
  }
  if (end == nullptr) return false;
  return recorded.result.erased || (!end->exception && !end->failure &&
                                    canonical(end->result) == canonical(recorded.result.value));
}

// `found`: what the code did instead of its recorded end.
void CodeCheck::diverge_at_end(Value found) {
  finding_.divergence = engine::end_divergence_view(
      parts_.recorded.state, parts_.recorded.code(), *parts_.recorded.end,
      parts_.events[parts_.recorded.events].seq, *finding_.version, std::move(found));
  finish(CodeVerdict::diverges);
}

void CodeCheck::on_advance(std::uint32_t, routines::Advance advance) {
  if (is_finished_) return;
  const engine::State& state = parts_.recorded.state;
  if (!std::exchange(has_advanced_, true)) {
    if (const Status possible = engine::check_advance(state, parts_.recorded.code(),
                                                      advance.recorded, advance.requests, {});
        !possible) {
      return finish(CodeVerdict::fails, possible.error().message);
    }
  }
  if (!advance.end && !advance.has_settled) return;
  if (parts_.recorded.end) {
    const engine::RoutineEnd* const end = advance.end ? &*advance.end : nullptr;
    if (ends_as_recorded(end)) return finish(CodeVerdict::continues);
    if (end != nullptr) return diverge_at_end(engine::end_view(*end));
    if (advance.requests.empty()) return diverge_at_end({});
    return diverge_at_end(engine::request_view(advance.requests.front()));
  }
  const bool parks = advance.end && advance.end->exception &&
                     !state.node_of(parts_.recorded.code()).code->fail_on_exception;
  if (!parks) return finish(CodeVerdict::continues);
  finding_.exception = *advance.end->exception;
  finish(CodeVerdict::fails);
}

void CodeCheck::on_lost(std::uint32_t, Error why) {
  finish(CodeVerdict::not_judged, std::move(why.message));
}

void CodeCheck::on_refused(std::uint32_t, Error why) {
  finish(CodeVerdict::fails, std::move(why.message));
}

}  // namespace ae::runtime

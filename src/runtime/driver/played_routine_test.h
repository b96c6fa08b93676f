// PlayedRoutine: the routine of a code node whose advances the test states, and what offers it.
//
// For tests only. Threads: the test's.
#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {

using routines::Advance;
using routines::FunctionEnd;
using Item = engine::Advance;

// A routine whose code is the test.
class PlayedRoutine final : public routines::Routine {
 public:
  PlayedRoutine(routines::RoutineStart start, PlayedRoutine*& current)
      : started(std::move(start)), current_(current) {
    current_ = this;
  }
  ~PlayedRoutine() override { current_ = nullptr; }
  void deliver(std::vector<engine::Delivery> outcomes) override {
    std::ranges::move(outcomes, std::back_inserter(given));
  }
  tools::Tool& functions() override { return tool_; }
  std::optional<engine::WorkerName> worker() const override { return its_worker; }

  void advance(Advance advance) { started.client->on_advance(started.node, std::move(advance)); }
  // The success of the function of the n-th call, given to the routine as this outcome.
  FunctionEnd success(std::size_t call, std::string_view result, std::uint64_t delivered) {
    return {
        .done = std::move(calls.at(call).done),
        .outcome = {.kind = OutcomeKind::success, .result = json(result), .delivered = delivered}};
  }

  routines::RoutineStart started;
  std::vector<engine::Delivery> given;
  std::deque<PendingCall> calls;
  std::optional<engine::WorkerName> its_worker;

 private:
  ManualTool tool_{calls};
  PlayedRoutine*& current_;
};

class Provider final : public routines::RoutineProvider {
 public:
  engine::OfferedCode offered(const engine::Plan&, std::uint32_t, std::string_view) const override {
    return {.versions = versions, .own_missing_for = own_missing_for, .away = away};
  }
  std::optional<routines::MissingFunction> missing_function(const engine::Plan&,
                                                            std::uint32_t) const override {
    return std::nullopt;
  }
  std::vector<routines::AgentVersion> agent_versions() const override {
    std::vector<routines::AgentVersion> all;
    for (const std::string& version : versions) all.push_back({"agent", version});
    return all;
  }
  std::unique_ptr<routines::Routine> start(routines::RoutineStart start) override {
    if (!has_room) return nullptr;
    starts++;
    auto routine = std::make_unique<PlayedRoutine>(std::move(start), current);
    routine->its_worker = worker;
    return routine;
  }
  std::optional<engine::WorkerName> worker;
  std::vector<std::string> versions{""}, away;
  bool has_room = true;
  Duration own_missing_for{};
  PlayedRoutine* current = nullptr;
  int starts = 0;
};

inline std::shared_ptr<const engine::Plan> code_plan(const std::string& code = "",
                                                     const std::string& more = "") {
  const auto tool = [](const std::string& members, const std::string& on_in_doubt = "resend") {
    return "{" + members + ", 'on_in_doubt':'" + on_in_doubt +
           "', 'timeout':'600s', 'grace':'30s', 'dedupe_window':'24h',"
           "'version':'0123456789abcdef', 'retry':{'max_attempts':1, 'initial_backoff':'200ms',"
           "'max_backoff':'10s', 'multiplier':2, 'retry_on':['connect']}}";
  };
  auto compiled = engine::Plan::compile(
      json("{'schema':1, 'nodes': [{'id':'code', 'kind':'code', 'code': {'agent':'agent',"
           "'language':'cpp'" +
           code + ", 'tools':['do', 'run:at_most_once', 'run:read']}}]" + more +
           ", 'tools': {'do': " + tool("'effect':'read'") +
           ", 'run:at_most_once': " + tool("'effect':'at_most_once', 'function':true", "park") +
           ", 'run:read': " + tool("'effect':'read', 'function':true") + "}}"));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

inline constexpr std::uint32_t kDo = 0, kMail = 1, kRead = 2;

inline engine::NewRequest call(std::string position, std::uint32_t tool,
                               std::uint64_t delivered = 0) {
  return {.position = std::move(position),
          .delivered = delivered,
          .tool = tool,
          .arguments = json("{}")};
}

}  // namespace ae::runtime::testing

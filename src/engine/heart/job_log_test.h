// JobLog: the log of a job and the state that it folds to, for tests: adds events and finds them.
//
// Every event is checked against the event table and applied when it is added. For tests only.
// Threads: one owner.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/json.h"
#include "log/event.h"
#include "plan/plan.h"

namespace ae::engine::testing {

// Calls visit(event) for each event of type E, as its struct.
template <class E>
void each(auto& events, const auto& visit) {
  for (auto& event : events) {
    if (auto* body = std::get_if<E>(&event.body)) visit(*body);
  }
}

// The placeholder of an erased value.
inline Erasable erased_value() {
  Erasable gone(Value::object({{"$redacted", std::string(64, 'a')}}));
  gone.erased = true;
  return gone;
}

class JobLog {
 public:
  JobLog(std::shared_ptr<const Plan> of, std::string_view id) : plan(std::move(of)) {
    state.job = JobId(std::string(id));
  }

  void add(const std::vector<EventBody>& drafts) {
    for (const EventBody& draft : drafts) {
      auto well_formed = check_payload(*event_kind(type_of(draft)), payload_json(draft));
      EXPECT_TRUE(well_formed) << (well_formed ? "" : well_formed.error().message);
      auto applied = apply(state, draft, now, uncached_plan_source());
      AE_CHECK(applied.has_value(),
               applied ? "" : fmt::format("{}\n{}", applied.error().message, log_text()));
      Event event;
      event.seq = state.seq;
      event.type = type_of(draft);
      event.created_at = now;
      if (!state.attempt.empty()) event.attempt_id = state.attempt;
      event.schema = schema_of(draft);
      event.body = draft;
      log.push_back(std::move(event));
    }
  }
  State folded(std::size_t events) const {
    const std::vector<Event> part(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(events));
    auto folded = fold(state.job, part, uncached_plan_source());
    AE_CHECK(folded.has_value(), folded ? "" : folded.error().message);
    return std::move(*folded);
  }

  std::string_view status() const { return to_text(state.status); }
  // "node", "node/3" for an item of a map or a turn of a loop, "node/3/0" for a call of that turn;
  // with "/probe" or "/compensate" for the probe or compensation of its call.
  std::uint32_t index_of(std::string_view name) const {
    for (const std::string_view side : {"/probe", "/compensate"}) {
      if (!name.ends_with(side)) continue;
      const Step& of = step(name.substr(0, name.size() - side.size()));
      const std::uint32_t index = side == "/probe" ? of.probe : of.undo;
      AE_CHECK(index != kNoStep, fmt::format("{}\n{}", name, log_text()));
      return index;
    }
    const std::size_t slash = name.find('/');
    const Node& node = state.plan->nodes[state.plan->by_id.at(std::string(name.substr(0, slash)))];
    if (slash == std::string_view::npos) return node.index;
    const std::string_view rest = name.substr(slash + 1);
    const std::size_t second = rest.find('/');
    const auto item = static_cast<std::uint32_t>(std::stoul(std::string(rest.substr(0, second))));
    const std::uint32_t nth =
        second == std::string_view::npos
            ? kNoTurn
            : static_cast<std::uint32_t>(std::stoul(std::string(rest.substr(second + 1))));
    const auto found = std::ranges::find_if(state.steps, [&](const Step& one) {
      return one.role == Role::node && one.node == node.index &&
             ((one.item == item && nth == kNoTurn) || (one.turn == item && one.nth == nth));
    });
    AE_CHECK(found != state.steps.end(), fmt::format("{}\n{}", name, log_text()));
    return static_cast<std::uint32_t>(found - state.steps.begin());
  }
  const Step& step(std::string_view name) const { return state.steps[index_of(name)]; }
  // The types of all events, or of those of a step, in order.
  std::vector<std::string> types(std::string_view node = "") const {
    std::vector<std::string> types;
    for (const Event& event : log) {
      if (node.empty() || step_of(event) == step(node).id.text) {
        types.emplace_back(event_name(event));
      }
    }
    return types;
  }
  // The events of one type, in the order of the log.
  template <class E>
  std::vector<E> all() const {
    std::vector<E> all;
    each<E>(log, [&](const E& event) { all.push_back(event); });
    return all;
  }
  // REQUIRES: there is one.
  template <class E>
  E last() const {
    const auto events = all<E>();
    AE_CHECK(!events.empty(), fmt::format("{}\n{}", event_name(E::kType), log_text()));
    return events.back();
  }
  std::size_t count(EventType type) const {
    return static_cast<std::size_t>(std::ranges::count(log, type, &Event::type));
  }
  std::string log_text() const {
    std::string log_text;
    for (const Event& event : log) {
      log_text += fmt::format("{} {} {}\n", event.seq, event_name(event),
                              canonical(payload_json(event.body)).substr(0, 160));
    }
    return log_text;
  }
  // The first event of this type for this node.
  std::uint64_t seq_of(EventType type, std::string_view node) const {
    const auto found = std::ranges::find_if(log, [&](const Event& event) {
      return event.type == type && step_of(event) == step(node).id.text;
    });
    AE_CHECK(found != log.end(), fmt::format("{}\n{}", node, log_text()));
    return found->seq;
  }

  std::shared_ptr<const Plan> plan;
  State state;
  std::vector<Event> log;
  std::vector<std::size_t> commits;  // events in the log after each
  Instant now = *instant_from_text("2026-01-01T00:00:00Z");

 protected:
  void commit() {
    if (commits.empty() || commits.back() != log.size()) commits.push_back(log.size());
  }
};

}  // namespace ae::engine::testing

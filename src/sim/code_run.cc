#include "sim/code_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/hash.h"
#include "json/json.h"

namespace ae::sim {
namespace {

std::string in_scope(std::string_view scope, std::string_view name) {
  return scope.empty() ? std::string(name) : fmt::format("{}/{}", scope, name);
}

}  // namespace

CodeRun::CodeRun(CodeRunSetup setup, engine::CodeRecord record)
    : setup_(std::move(setup)),
      program_(code_program(setup_.plan->nodes[setup_.node].code->agent)),
      replay_(engine::CodeRecord(record)),
      x_(canonical(setup_.input)) {
  for (const engine::Delivery& delivery : record.deliveries) {
    if (is_scope(delivery.kind) && delivery.passed_over == 0) {
      ended_scopes_.insert(delivery.position);
    }
  }
  run();
}

bool CodeRun::replay() {
  for (;;) {
    if (!divergence_) divergence_ = replay_.find_missing(end.has_value());
    if (divergence_) return false;
    if (!replay_.may_deliver()) break;
    const engine::Delivery next = replay_.deliver();
    if (next.passed_over > 0) continue;
    complete(next);
    run();
  }
  AE_CHECK(replay_.is_at_frontier(), "a replay that ends neither way");
  return true;
}

void CodeRun::deliver(const engine::Delivery& outcome) {
  replay_.count_delivery();
  complete(outcome);
  run();
}

bool CodeRun::end_scope() {
  if (!ended_scope_) return false;
  engine::Delivery outcome{.position = *std::exchange(ended_scope_, std::nullopt),
                           .kind = engine::NodeKind::scope};
  outcome.result = Value(local_);
  recorded.items.emplace_back(engine::Advance::ScopeEnded{.position = outcome.position,
                                                          .result = outcome.result,
                                                          .failure = {},
                                                          .delivered = replay_.delivered()});
  deliver(outcome);
  return true;
}

// Until it waits for an outcome.
void CodeRun::run() {
  while (!end && !divergence_) {
    if (at_ == program_.groups.size()) {
      end = engine::RoutineEnd{.result = Value::object({{"x", x_}})};
      return;
    }
    const CodeGroup& group = program_.groups[at_];
    if (!std::exchange(is_entered_, true)) enter(group);
    if (failure_) {
      end = engine::RoutineEnd{.failure = *failure_};
      ended_scope_.reset();
      return;
    }
    if (!is_done(group)) return check_scope();
    leave(group);
    at_++;
    is_entered_ = false;
  }
}

void CodeRun::enter(const CodeGroup& group) {
  if (!group.scope.empty()) {
    local_ = x_;
    open_.insert(group.scope);
    switch (replay_.match({.position = group.scope, .kind = engine::NodeKind::scope})) {
      case engine::Replay::Match::recorded:
        break;
      case engine::Replay::Match::diverged:
        divergence_ = replay_.divergence();
        return;
      case engine::Replay::Match::is_new:
        recorded.items.emplace_back(engine::Advance::ScopeBegun{
            .position = group.scope, .delivered = replay_.delivered(), .is_turn = false});
        break;
    }
    if (ended_scopes_.contains(group.scope)) return;  // its result comes from the record
    scope_ = group.scope;
  }
  for (const CodeItem& item : group.items) {
    if (!divergence_) begin(item, group.scope);
  }
}

bool CodeRun::is_done(const CodeGroup& group) const {
  if (!group.scope.empty()) return done_.contains(group.scope);
  const auto has_outcome = [&](const CodeItem& item) {
    return item.kind != CodeItem::Kind::call && item.kind != CodeItem::Kind::wait
               ? !group.is_race
               : done_.contains(position_of(group, item));
  };
  const bool has_requests = std::ranges::any_of(group.items, [](const CodeItem& item) {
    return item.kind == CodeItem::Kind::call || item.kind == CodeItem::Kind::wait;
  });
  if (!has_requests) return true;
  return group.is_race ? std::ranges::any_of(group.items, has_outcome)
                       : std::ranges::all_of(group.items, has_outcome);
}

// A scope ends when all requests inside of it have outcomes.
void CodeRun::check_scope() {
  const auto is_inside = [&](const std::string& open) { return engine::is_inside(open, *scope_); };
  if (scope_ && std::ranges::none_of(open_, is_inside)) ended_scope_ = scope_;
}

void CodeRun::leave(const CodeGroup& group) {
  if (!group.is_race) return;
  for (const CodeItem& item : group.items) {
    std::string position = position_of(group, item);
    if (open_.contains(position)) cancelled.push_back(std::move(position));
  }
}

std::string CodeRun::position_of(const CodeGroup& group, const CodeItem& item) const {
  return in_scope(group.scope, item.name);
}

void CodeRun::begin(const CodeItem& item, const std::string& scope) {
  using enum CodeItem::Kind;
  std::string position = in_scope(scope, item.name);
  if (item.ends_code) ends_code_.insert(position);
  switch (item.kind) {
    case call: {
      std::vector<Member> args{{"n", item.name}, {"x", x_}};
      if (scope_) args.emplace_back("local", local_);
      if (!item.fate.empty()) args.emplace_back("fate", Value::array(item.fate));
      return request({.position = std::move(position), .arguments = Value::object(std::move(args))},
                     item.tool);
    }
    case wait: {
      engine::NewRequest next{.position = position, .kind = engine::NodeKind::wait};
      next.wait = item.wait;
      if (item.wait.type == engine::WaitType::signal || item.wait.type == engine::WaitType::human) {
        next.wait.key = "key-" + position;
      }
      return request(std::move(next), {});
    }
    case time:
      return value("time", scope);
    case uuid:
      return value("uuid", scope);
    case emit:
      if (!replay_.was_emitted(scope)) {
        recorded.items.emplace_back(engine::Advance::Emitted{
            .scope = scope, .name = item.name, .value = Value(x_), .is_published = false});
      }
      return;
  }
}

void CodeRun::request(engine::NewRequest next, std::string_view tool) {
  engine::MadeRequest made{
      .position = next.position, .kind = next.kind, .tool = tool, .wait = next.wait.type};
  if (!tool.empty() && !setup_.is_blind_erased) {
    made.arguments_hash = blinded_digest(setup_.blind, canonical(next.arguments));
  }
  open_.insert(next.position);
  switch (replay_.match(made)) {
    case engine::Replay::Match::recorded:
      return;
    case engine::Replay::Match::diverged:
      divergence_ = replay_.divergence();
      return;
    case engine::Replay::Match::is_new:
      break;
  }
  const auto named = std::ranges::find(setup_.plan->tools, tool, &engine::ToolPolicy::name);
  next.tool = static_cast<std::uint32_t>(named - setup_.plan->tools.begin());
  next.delivered = replay_.delivered();
  requests.push_back(std::move(next));
}

// A recorded value is part of what follows.
void CodeRun::value(std::string_view kind, const std::string& scope) {
  const std::string within = scope.empty() ? "" : scope + "/";
  const std::uint64_t number = ++counts_[fmt::format("{}:{}", kind, within)];
  const std::string name = fmt::format("{}:{}{}", kind, within, number);
  std::string& variable = scope_ ? local_ : x_;
  if (const Value* known = replay_.value(name)) return mix(variable, canonical(*known));
  const std::string drawn = to_text(setup_.now);
  Value made = kind == "time" ? Value::object({{"time", drawn}})
                              : Value(to_hex(sha256(fmt::format("{} {} {}", x_, drawn, name))));
  mix(variable, canonical(made));
  recorded.items.emplace_back(engine::Advance::NewValue{.name = name, .value = std::move(made)});
}

void CodeRun::complete(const engine::Delivery& outcome) {
  const std::string& position = outcome.position;
  if (open_.erase(position) == 0 || end) return;
  done_.insert(position);
  const std::string text = outcome.failure ? outcome.failure->code : canonical(outcome.result);
  if (position == scope_) scope_.reset();  // its local variable is its result
  const bool is_local = scope_ && engine::is_inside(position, *scope_);
  mix(is_local ? local_ : x_, fmt::format("{} {}", position, text));
  if (outcome.failure && ends_code_.contains(position)) failure_ = *outcome.failure;
}

void CodeRun::mix(std::string& variable, std::string_view with) {
  variable = to_hex(sha256(fmt::format("{} {}", variable, with))).substr(0, 12);
}

}  // namespace ae::sim

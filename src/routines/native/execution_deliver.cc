// What is delivered to a routine, and what it sends to its client.
#include <algorithm>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "routines/native/execution.h"

namespace ae::routines {
namespace {

// The success of a function, or what a scope returned, as it is given to the routine.
engine::Delivery success_of(std::string position, Value result) {
  return {.position = std::move(position), .result = std::move(result)};
}

}  // namespace

void Execution::deliver(std::vector<engine::Delivery> outcomes, Instant now) {
  const std::scoped_lock lock(mutex_);
  if (is_inert_) return;
  set_time(now);
  for (engine::Delivery& outcome : outcomes) arrived_.emplace_back(std::move(outcome));
  turns_.go_on();
}

std::shared_ptr<const Function> Execution::function_of(const std::string& position) {
  const std::scoped_lock lock(mutex_);
  const auto found = open_.find(position);
  return found == open_.end() ? nullptr : found->second->function;
}

void Execution::on_function_end(const std::string& position, FunctionEnd end, Instant now) {
  {
    const std::scoped_lock lock(mutex_);
    if (!is_inert_ && can_give(position, end.outcome)) {
      set_time(now);
      arrived_.emplace_back(FunctionSuccess{position, std::move(end)});
      return turns_.go_on();
    }
  }
  end.done(std::move(end.outcome));  // the engine decides what follows
}

// A success that will be recorded as it is. REQUIRES: the mutex is held.
bool Execution::can_give(const std::string& position, const Outcome& outcome) const {
  if (outcome.kind != OutcomeKind::success || outcome.invalid) return false;
  const auto request = open_.find(position);
  if (request == open_.end() || canonical_exceeds(outcome.result, kValueMax)) return false;
  const auto& schema = start_.plan->tools[request->second->tool].result_schema;
  return !schema || schema->check(outcome.result).has_value();
}

void Execution::drop() {
  const std::scoped_lock lock(mutex_);
  is_dropped_ = true;
  release_functions();
  is_inert_ = true;
  turns_.stop_all();
  turns_.go_on();
}

// ---------------------------------------------------------------- deliveries: the mutex is held

// While no thread is ready: the next delivery, if there is one.
bool Execution::deliver_next() {
  if (is_inert_) return false;
  if (!is_live_) {
    if (auto missing = replay_.find_missing(end_.has_value())) {
      diverge(*std::move(missing));
      return false;
    }
    if (replay_.may_deliver()) {
      const engine::Delivery& next = replay_.deliver();
      if (next.passed_over == 0) complete(next.position, next);
      return true;
    }
    AE_CHECK(replay_.is_at_frontier(), start_.job.text);
    is_live_ = true;
    has_unsent_advance_ = true;
  }
  if (has_unsent_advance_) seal_advance();
  if (arrived_.empty()) return false;
  Arrived next = std::move(arrived_.front());
  arrived_.pop_front();
  std::visit([this](auto& one) { give(std::move(one)); }, next);
  return true;
}

void Execution::give(engine::Delivery outcome) {
  has_unsent_advance_ = true;
  replay_.count_delivery();
  complete(outcome.position, outcome);
}

void Execution::give(FunctionSuccess success) {
  has_unsent_advance_ = true;  // also without a delivery: an advance was announced (has_settled)
  if (!open_.contains(success.position)) {  // another outcome was delivered first
    return finish_call(std::move(success.end));
  }
  success.end.outcome.delivered = replay_.delivered();
  const engine::Delivery outcome = success_of(success.position, success.end.outcome.result);
  advance_.functions.push_back(std::move(success.end));
  replay_.count_delivery();
  complete(success.position, outcome);
}

void Execution::give(const std::shared_ptr<ClosedScope>& scope) {
  has_unsent_advance_ = true;
  engine::Delivery outcome = success_of(scope->position, scope->result);
  outcome.failure = scope->failure;
  advance_.recorded.items.emplace_back(
      engine::Advance::ScopeEnded{.position = scope->position,
                                  .result = std::move(scope->result),
                                  .failure = std::move(scope->failure),
                                  .delivered = replay_.delivered()});
  replay_.count_delivery();
  forget_scope(scope->position);
  complete(scope->position, outcome);
}

// The values and names inside of an ended scope are not used any more.
void Execution::forget_scope(const std::string& scope) {
  positions_.forget_inside(scope);
  std::erase_if(scope_values_, [&](const auto& one) {
    return one.first == scope || engine::is_inside(one.first, scope);
  });
}

// No effect if the request is not open: it has an outcome, or was made in an ended scope.
void Execution::complete(const std::string& position, const engine::Delivery& outcome) {
  const auto found = open_.find(position);
  if (found == open_.end()) return;
  Request& request = *found->second;
  request.delivered = replay_.delivered();
  request.outcome = outcome;
  request.function = nullptr;
  for (RoutineThread* const waiting : request.waiting) turns_.wake(*waiting);
  close(found);
}

void Execution::close(OpenRequests::iterator open) {
  const std::shared_ptr<ClosedScope> scope = open->second->closed;
  open_.erase(open);
  if (scope == nullptr) {
    open_outside_--;
  } else if (--scope->open == 0 && scope->has_returned && !end_) {
    arrived_.emplace_back(scope);
  }
}

// ---------------------------------------------------------------- the client

void Execution::seal_advance() {
  has_unsent_advance_ = false;
  advance_.delivered = replay_.delivered();
  advance_.has_settled = arrived_.empty();
  std::erase_if(advance_.cancelled,
                [this](const std::string& position) { return !open_.contains(position); });
  send(std::exchange(advance_, {}));
}

void Execution::send(Message message) {
  messages_.push_back(std::move(message));
  if (std::exchange(is_posted_, true)) return;
  loop_.post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->call_client();
  });
}

// On the loop. Each call of the client may drop the routine.
void Execution::call_client() {
  for (;;) {
    std::unique_lock lock(mutex_);
    if (is_dropped_ || messages_.empty()) {
      is_posted_ = false;
      return;
    }
    Message message = std::move(messages_.front());
    messages_.pop_front();
    lock.unlock();
    if (auto* const advance = std::get_if<Advance>(&message)) {
      start_.client->on_advance(start_.node, std::move(*advance));
    } else if (auto* const divergence = std::get_if<Divergence>(&message)) {
      start_.client->on_diverged(start_.node, std::move(*divergence));
    } else {
      start_.client->on_lost(start_.node, std::get<Error>(std::move(message)));
    }
  }
}

// Beside the position, a divergence at the end has how the code ended.
void Execution::diverge(Divergence divergence) {
  if (end_ && end_->exception) {
    divergence.found = Value::object({{"exception", *end_->exception}});
  } else if (end_ && end_->failure) {
    const auto& [code, message] = *end_->failure;
    divergence.found =
        Value::object({{"failure", Value::object({{field::code, code}, {"message", message}})}});
  }
  release_functions();
  send(std::move(divergence));
  is_inert_ = true;
  turns_.stop_all();
}

void Execution::lose(Error why) {
  if (is_inert_) return;
  release_functions();
  send(std::move(why));
  is_inert_ = true;
  turns_.stop_all();
}

void Execution::drop_scope_ends() {
  std::erase_if(arrived_, [](const Arrived& arrived) {
    return std::holds_alternative<std::shared_ptr<ClosedScope>>(arrived);
  });
}

// Ends the calls whose successes are not in an advance that the client has, or will have.
void Execution::release_functions() {
  const auto finish_all = [this](Advance& advance) {
    for (FunctionEnd& end : std::exchange(advance.functions, {})) finish_call(std::move(end));
  };
  if (is_dropped_) {
    for (Message& message : std::exchange(messages_, {})) {
      if (auto* const advance = std::get_if<Advance>(&message)) finish_all(*advance);
    }
  }
  finish_all(advance_);
  for (Arrived& arrived : std::exchange(arrived_, {})) {
    if (auto* const success = std::get_if<FunctionSuccess>(&arrived)) {
      finish_call(std::move(success->end));
    }
  }
}

void Execution::finish_call(FunctionEnd end) {
  loop_.post([end = std::move(end)]() mutable {
    end.outcome.delivered.reset();
    end.done(std::move(end.outcome));
  });
}

}  // namespace ae::routines

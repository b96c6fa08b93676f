// The recorded values of a routine: times, random numbers, UUIDs, patches, emitted values.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "routines/native/execution.h"
#include "routines/native/routine_end.h"

namespace ae::routines {
namespace {

std::string value_name(std::string_view kind, std::string_view scope, std::uint64_t number) {
  return scope.empty() ? fmt::format("{}:{}", kind, number)
                       : fmt::format("{}:{}/{}", kind, scope, number);
}

}  // namespace

// On the loop, whose clock it is: other threads compute the time from it.
void Execution::set_time(Instant now) {
  base_time_ = now;
  base_clock_ = clock_.since_start();
}

Instant Execution::estimate() const {
  if (is_dropped_) return std::max(last_time_, base_time_);  // the clock may be gone
  return std::max(last_time_, base_time_ + (clock_.since_start() - base_clock_));
}

Instant Execution::now(const Context& context) {
  const std::scoped_lock lock(mutex_);
  const Instant estimated = estimate();
  if (!caller(context)) return estimated;
  std::string name = value_name("time", context.scope_, ++scope_values_[context.scope_].times);
  if (const Value* const recorded = replay_.value(name)) {
    const Instant at = time_of(*recorded).value_or(last_time_);  // absent: it was erased
    last_time_ = std::max(last_time_, at);
    return at;
  }
  last_time_ = estimated;
  advance_.recorded.items.emplace_back(
      engine::Advance::NewValue{.name = std::move(name), .value = time_value(estimated)});
  return estimated;
}

const Hash& Execution::seed() {
  if (seed_) return *seed_;
  if (const Value* const recorded = replay_.value("random")) {
    const auto found = recorded->is_string() ? hash_from_hex(recorded->as_string()) : std::nullopt;
    return seed_.emplace(found.value_or(Hash()));
  }
  seed_ = entropy_.next();
  advance_.recorded.items.emplace_back(
      engine::Advance::NewValue{.name = "random", .value = to_hex(*seed_)});
  return *seed_;
}

double Execution::random(const Context& context) {
  const std::scoped_lock lock(mutex_);
  if (!caller(context)) return RandomNumbers(entropy_.next(), "").next();
  auto& numbers = scope_values_[context.scope_].numbers;
  if (!numbers) numbers.emplace(seed(), context.scope_);
  return numbers->next();
}

std::string Execution::uuid(const Context& context) {
  const std::scoped_lock lock(mutex_);
  if (!caller(context)) return uuid_v4(entropy_.next());
  std::string name = value_name("uuid", context.scope_, ++scope_values_[context.scope_].uuids);
  if (const Value* const recorded = replay_.value(name)) {
    return recorded->is_string() ? recorded->as_string() : std::string();
  }
  std::string uuid = uuid_v4(entropy_.next());
  advance_.recorded.items.emplace_back(
      engine::Advance::NewValue{.name = std::move(name), .value = uuid});
  return uuid;
}

bool Execution::patched(const Context& context, std::string_view id) {
  const std::scoped_lock lock(mutex_);
  if (!caller(context)) return false;
  if (!engine::is_request_name(id)) {
    force_end(exception_end("input_invalid",
                            fmt::format("\"{}\" cannot be the id of a patch", id.substr(0, 100))));
    return false;
  }
  if (const auto known = patches_.find(id); known != patches_.end()) return known->second;
  std::string name = fmt::format("patch:{}", id);
  const Value* const recorded = replay_.value(name);
  const bool is_patched = recorded != nullptr ? *recorded == Value(true) : replay_.is_at_frontier();
  if (recorded == nullptr) {
    advance_.recorded.items.emplace_back(
        engine::Advance::NewValue{.name = std::move(name), .value = is_patched});
  }
  patches_.emplace(id, is_patched);
  return is_patched;
}

Status Execution::emit(const Context& context, std::string_view name, Value value,
                       bool is_published) {
  Status possible = check_recordable(value, engine::kEmittedMax, "the emitted value");
  const std::scoped_lock lock(mutex_);
  AE_TRY(caller(context));
  if (!engine::is_request_name(name)) {
    return fail(Code::input_invalid, "\"{}\" cannot be the name of an emitted value",
                name.substr(0, 100));
  }
  AE_TRY(std::move(possible));
  if (replay_.was_emitted(context.scope_)) return {};
  advance_.recorded.items.emplace_back(engine::Advance::Emitted{.scope = context.scope_,
                                                                .name = std::string(name),
                                                                .value = std::move(value),
                                                                .is_published = is_published});
  return {};
}

bool Execution::is_replaying() {
  const std::scoped_lock lock(mutex_);
  return !replay_.is_at_frontier();
}

}  // namespace ae::routines

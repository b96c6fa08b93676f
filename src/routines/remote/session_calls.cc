#include "routines/remote/session_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "json/json.h"
#include "log/field_names.h"
#include "routines/remote/server_messages.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

constexpr std::string_view kRunPrefix = "run:";

Outcome not_sent(std::string message) {
  return tools::make_outcome(OutcomeKind::failure, true, true, "not_sent", std::move(message));
}

}  // namespace

async::TimerId SessionCalls::after(Duration delay, std::uint64_t call,
                                   std::function<void(std::uint64_t)> task) {
  return parts_.loop.after(delay, [alive = alive_.watch(), call, task = std::move(task)] {
    if (alive) task(call);
  });
}

void SessionCalls::perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done,
                           std::uint64_t routine) {
  const std::uint64_t number = ++last_;
  const Duration send_within = call.send_within;
  numbers_[{call.invocation, call.try_no}] = number;
  Entry entry{.routine = routine,
              .permit = std::move(permit),
              .call = std::move(call),
              .done = std::move(done),
              .send_by = parts_.clock.since_start() + send_within};
  Entry& added = calls_.emplace(number, std::move(entry)).first->second;
  waiting_.push_back(number);
  added.deadline = after(send_within, number, [this](std::uint64_t late) {
    const auto found = calls_.find(late);
    if (found == calls_.end() || found->second.phase > Phase::ready) return;
    end(found, not_sent("the worker had no room for it in time"));
  });
  start_waiting();
}

void SessionCalls::start_waiting() {
  while (!waiting_.empty() && in_worker_ < parts_.calls_max) {
    const auto found = calls_.find(waiting_.front());
    waiting_.pop_front();
    if (found == calls_.end()) continue;  // withdrawn
    found->second.phase = Phase::ready;
    in_worker_++;
    parts_.on_ready(found->first);
  }
}

std::string SessionCalls::perform_message(std::uint64_t number, Duration acked_at) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return "";
  Entry& entry = found->second;
  const tools::Call& call = entry.call;
  entry.sent_at = parts_.clock.since_start();
  if (entry.sent_at >= entry.send_by) {
    after(Duration(0), number, [this](std::uint64_t late) {
      if (const auto one = calls_.find(late); one != calls_.end()) {
        end(one, not_sent("it was too late to send it"));
      }
    });
    return "";
  }
  entry.phase = Phase::sent;
  std::move(*entry.permit).consume(call.invocation, call.try_no);
  entry.permit.reset();
  // Counted from the moment at which the worker sent the acknowledged frame, which was before it
  // came: so the function is not begun after send_by.
  std::vector<Member> members{{"call", number},
                              {"execution_key", call.key.text},
                              {"invocation", call.invocation.text},
                              {"job", call.job.text},
                              {"key", call.external_key.text},
                              {"send_within_ms", milliseconds(entry.send_by - acked_at)},
                              {"timeout_ms", milliseconds(call.timeout)},
                              {"tool", call.tool},
                              {field::try_, std::uint64_t{call.try_no}},
                              {"type", "perform"}};
  if (entry.routine != 0) {
    members.emplace_back("routine", entry.routine);
    members.emplace_back(field::position, call.position);
  }
  if (!call.tool.starts_with(kRunPrefix)) members.emplace_back(field::arguments, call.args);
  if (!call.inputs.is_null()) members.emplace_back("inputs", call.inputs);
  if (std::string parent = call.trace_headers().traceparent; !parent.empty()) {
    members.emplace_back(field::traceparent, std::move(parent));
  }
  // The worker reports its own timeouts; this is for one that does not.
  parts_.loop.cancel(entry.deadline);
  entry.deadline =
      after(entry.send_by - entry.sent_at + call.timeout, number, [this](std::uint64_t late) {
        end_in_time(late, tools::make_outcome(OutcomeKind::timeout, false, false, "timeout",
                                              "the worker had not reported its end in time"));
      });
  return canonical(Value::object(std::move(members)));
}

bool SessionCalls::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  const auto known = numbers_.find({invocation, try_no});
  if (known == numbers_.end()) return false;
  const std::uint64_t number = known->second;
  const auto found = calls_.find(number);
  if (found->second.phase < Phase::sent) {
    after(Duration(0), number, [this](std::uint64_t one) {
      const auto entry = calls_.find(one);
      if (entry == calls_.end() || entry->second.phase >= Phase::sent) return;
      end(entry, not_sent("withdrawn before it was sent"));
    });
    return true;
  }
  if (!found->second.done) return true;
  parts_.send(Value::object({{"call", number}, {"type", "abandon"}}));
  const Duration expires = found->second.send_by - parts_.clock.since_start();
  after(std::max(expires, Duration(kAbandonGrace)), number, [this](std::uint64_t late) {
    end_in_time(late,
                tools::make_outcome(OutcomeKind::unknown, false, false, "killed",
                                    "it was abandoned, and the worker did not state its end"));
  });
  return true;
}

// The outcome of a call that the worker still has: what it reports later is late.
void SessionCalls::end_in_time(std::uint64_t number, Outcome outcome) {
  const auto found = calls_.find(number);
  if (found == calls_.end() || !found->second.done) return;
  Entry& entry = found->second;
  entry.phase = Phase::late;
  outcome.elapsed = parts_.clock.since_start() - entry.sent_at;
  auto done = std::exchange(entry.done, nullptr);
  done(std::move(outcome));
}

// Removes it, and reports its outcome. May destroy this object.
void SessionCalls::end(Calls::iterator found, Outcome outcome) {
  auto node = calls_.extract(found);
  Entry& entry = node.mapped();
  parts_.loop.cancel(entry.deadline);
  numbers_.erase({entry.call.invocation, entry.call.try_no});
  if (entry.phase != Phase::waiting) in_worker_--;
  if (entry.phase >= Phase::sent) outcome.elapsed = parts_.clock.since_start() - entry.sent_at;
  start_waiting();
  if (entry.done) return entry.done(std::move(outcome));
  if (entry.call.on_late_outcome) entry.call.on_late_outcome(std::move(outcome));
}

// ---------------------------------------------------------------- messages

// A call that the worker was given and has not ended.
Result<SessionCalls::Calls::iterator> SessionCalls::find(std::uint64_t number) {
  const auto found = calls_.find(number);
  if (found == calls_.end() || found->second.phase < Phase::sent) {
    return fail(Code::not_found, "this session has no call {}", number);
  }
  return found;
}

Result<SessionCalls::Calls::iterator> SessionCalls::find(const Value& message) {
  AE_ASSIGN(const std::uint64_t number, read_number(message, "call"));
  return find(number);
}

Status SessionCalls::on_ended(const Value& message, const std::string& principal,
                              const std::string& worker) {
  AE_ASSIGN(const Calls::iterator found, find(message));
  AE_ASSIGN(Outcome outcome, read_end(message));
  Entry& entry = found->second;
  if (outcome.kind == OutcomeKind::unknown && entry.call.on_late_outcome) {  // it may end later
    parts_.lost.add({entry.call.job, entry.call.invocation, entry.call.try_no},
                    {.principal = principal,
                     .worker = worker,
                     .done = {},
                     .on_late_outcome = std::exchange(entry.call.on_late_outcome, nullptr),
                     .sent_at = entry.sent_at,
                     .send_by = entry.send_by,
                     .was_received = true});
  }
  end(found, std::move(outcome));
  return {};
}

Status SessionCalls::on_text(const Value& message) {
  AE_ASSIGN(const Calls::iterator found, find(message));
  AE_ASSIGN(const std::uint64_t at, read_number(message, field::at));
  const Value& text = message["text"];
  Entry& entry = found->second;
  if (!text.is_string() || at != entry.text_bytes ||
      text.as_string().size() > tools::kStreamMax - at) {
    return fail(Code::input_invalid, "`text` does not follow the text before it");
  }
  entry.text_bytes += text.as_string().size();
  if (!entry.done || !entry.call.on_text_delta) return {};
  entry.call.on_text_delta({.offset = static_cast<std::size_t>(at), .text = text.as_string()});
  return {};
}

Status SessionCalls::on_progress(const Value& message) {
  AE_ASSIGN(const Calls::iterator found, find(message));
  const Value* const value = message.find(field::value);
  if (value == nullptr || canonical_exceeds(*value, tools::kProgressMax)) {
    return fail(Code::input_invalid, "`value` has more than {} bytes", tools::kProgressMax);
  }
  Entry& entry = found->second;
  if (!entry.done || !entry.call.progress) return {};
  // Moved out while it runs: it may end the call.
  const std::uint64_t number = found->first;
  auto progress = std::exchange(entry.call.progress, nullptr);
  const auto alive = alive_.watch();
  progress(*value);
  if (!alive) return {};
  if (const auto still = calls_.find(number); still != calls_.end()) {
    still->second.call.progress = std::move(progress);
  }
  return {};
}

Result<std::optional<FunctionEnd>> SessionCalls::take_success(std::uint64_t number,
                                                              std::uint64_t routine,
                                                              Outcome outcome) {
  AE_ASSIGN(const Calls::iterator found, find(number));
  if (found->second.routine != routine) {
    return fail(Code::not_found, "call {} does not belong to routine {}", number, routine);
  }
  if (!found->second.done) {  // another outcome was reported in the meantime
    outcome.delivered.reset();
    end(found, std::move(outcome));
    return std::optional<FunctionEnd>();
  }
  auto node = calls_.extract(found);
  Entry& entry = node.mapped();
  parts_.loop.cancel(entry.deadline);
  numbers_.erase({entry.call.invocation, entry.call.try_no});
  in_worker_--;
  outcome.elapsed = parts_.clock.since_start() - entry.sent_at;
  start_waiting();
  return FunctionEnd{.done = std::move(entry.done), .outcome = std::move(outcome)};
}

Status SessionCalls::on_success(std::uint64_t number, Outcome outcome) {
  AE_ASSIGN(const Calls::iterator found, find(number));
  outcome.delivered.reset();
  end(found, std::move(outcome));
  return {};
}

bool SessionCalls::has_calls_of(std::uint64_t routine) const {
  return std::ranges::any_of(
      calls_, [&](const auto& one) { return one.second.routine == routine && one.second.done; });
}

void SessionCalls::lose(const std::string& principal, const std::string& worker) {
  alive_.renew();
  waiting_.clear();
  numbers_.clear();
  in_worker_ = 0;
  for (auto& [number, entry] : std::exchange(calls_, {})) {
    parts_.loop.cancel(entry.deadline);
    if (entry.phase < Phase::sent) {
      parts_.loop.post([done = std::move(entry.done)]() mutable {
        done(not_sent("the worker was lost before it was sent"));
      });
      continue;
    }
    parts_.lost.add({entry.call.job, entry.call.invocation, entry.call.try_no},
                    {.principal = principal,
                     .worker = worker,
                     .done = std::move(entry.done),
                     .on_late_outcome = std::move(entry.call.on_late_outcome),
                     .sent_at = entry.sent_at,
                     .send_by = entry.send_by});
  }
}

}  // namespace ae::routines

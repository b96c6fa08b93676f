// Questions of legacy servers: a call stays open between the try that asked and the try with the
// answer.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "async/boot_clock.h"
#include "json/json.h"
#include "log/field_names.h"
#include "mcp/client/classify_response.h"
#include "mcp/client/server.h"
#include "mcp/client/server_calls.h"

namespace ae::mcp::client {
namespace {

// The prefix of our `state`; it is never sent to a server.
constexpr std::string_view kState = "aetheris/open-call/";
constexpr std::size_t kQuestionShown = 200;  // bytes of a question in a warning

Value make_action(std::string_view word) { return Value::object({{"action", word}}); }

}  // namespace

std::string qualified_name(const Server::Tool& tool) {
  return tool.server.empty() ? tool.name : fmt::format("{}.{}", tool.server, tool.name);
}

std::optional<std::uint32_t> suspended_try_of(const Value& inputs) {
  const std::string_view state =
      inputs.is_object() ? inputs.text(field::state) : std::string_view();
  if (!state.starts_with(kState)) return std::nullopt;
  const std::string_view number = state.substr(kState.size());
  std::uint32_t try_no = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), try_no);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return std::nullopt;
  return try_no;
}

// Over HTTP a question may arrive on the stream of its call. A program has one stream for all
// calls, and so has GET: there the asking call is known only if one call is open and no other was
// cancelled or lost.
std::shared_ptr<Server::OpenCall> Server::find_asking_call(const IncomingMessage& question,
                                                           std::string& refusal_reason) const {
  std::vector<const InFlightCall*> sent;
  for (const auto& [key, flight] : in_flight_) {
    if (flight.open && (question.stream == 0 || flight.open->request == question.stream)) {
      sent.push_back(&flight);
    }
  }
  const bool one_stream = question.stream == 0;
  const bool others = one_stream && std::ranges::any_of(suspended_, [](const auto& entry) {
                        return !entry.second->outcome;
                      });
  if (sent.size() > 1 || others) {
    refusal_reason = "several calls are open, and the one that asks is unknown";
  }
  if (one_stream && !orphaned_.empty())
    refusal_reason = "an earlier call was abandoned or lost, and may be the one that asks";
  if (!refusal_reason.empty() || sent.empty()) return nullptr;
  const InFlightCall& flight = *sent.front();
  if (flight.end_reason != InFlightCall::EndReason::none) {
    refusal_reason = "the call is being abandoned";
  } else if (flight.call.answer_timeout.count() <= 0) {
    refusal_reason =
        "only a server or a worker keeps a call open for an answer: `run` ends when its job is "
        "idle, a probe or compensation cannot ask";
  } else if (suspended_.size() >= kSuspendedMax) {
    refusal_reason = "256 calls already wait for answers";
  }
  return refusal_reason.empty() ? flight.open : nullptr;
}

void Server::on_question(const IncomingMessage& question) {
  std::string refusal_reason;
  if (const auto open = find_asking_call(question, refusal_reason)) {
    const std::string state = fmt::format("{}{}", kState, open->key.second);
    if (auto outcome = classify_open_question(question.message.params, state, session_->used())) {
      return suspend(open, question.message.id, *std::move(outcome));
    }
    refusal_reason = "it has no valid answer";
  }
  session_->send_answer({.id = question.message.id, .result = make_action("decline")});
  std::vector<Key> keys;
  for (const auto& [key, flight] : in_flight_) {
    if (flight.open && (question.stream == 0 || flight.open->request == question.stream)) {
      keys.push_back(key);
    }
  }
  report_declined(question.message.params, refusal_reason, keys);
}

// A question was declined on behalf of a user: reports it to the jobs, and once per call to the
// operator.
void Server::report_declined(const Value& params, const std::string& why,
                             const std::vector<Key>& keys) {
  const Session* const session = session_.get();
  for (const Key& key : keys) {
    const auto found = in_flight_.find(key);
    if (session_.get() != session) return;
    if (found == in_flight_.end() || !found->second.open) continue;
    InFlightCall& flight = found->second;
    if (warn_ && !std::exchange(flight.is_warned, true)) {
      const std::string question_text =
          truncate_text(tools::printable(tools::scrub(params.text("message"), session_->used()),
                                         tools::LineBreaks::escape),
                        kQuestionShown);
      warn_(flight.call.job,
            fmt::format("the MCP server of {} asks a user: \"{}\"; it was declined: {}",
                        qualified_name(flight.tool), question_text, why));
    }
    session_->report_message(flight.open->request,
                             fmt::format("a question to a user was declined: {}", why));
  }
}

void Server::suspend(const std::shared_ptr<OpenCall>& open, const Value& question,
                     Outcome outcome) {
  const Key key = open->key;
  InFlightCall& flight = in_flight_.at(key);
  flight.answer_ticket = 0;  // the earlier answer has been sent, or soon is
  open->question = question;
  suspend(open, key, flight.call.answer_timeout + kSuspendedGrace);
  finish_call(key, std::move(outcome));
}

void Server::suspend(const std::shared_ptr<OpenCall>& open, const Key& key, Duration time) {
  open->is_suspended = true;
  open->key = key;
  open->timer = loop_.after(time, [weak = weak_from_this(), key] {
    if (const auto self = weak.lock())
      self->release_suspended(key, "its question was not answered in time");
  });
  suspended_.insert_or_assign(key, open);
  session_->set_progress_callback(open->request, nullptr);
}

// The server did not wait for the answer: the next try gets this outcome.
void Server::store_suspended_reply(OpenCall& open, const Reply& reply) {
  Outcome outcome = classify_response(reply, open.tool.output_max, session_->used());
  if (reply.kind == Reply::Kind::result) ++answered_;
  open.bytes = canonical(outcome.result).size();
  const bool fits = suspended_bytes_ + open.bytes <= kSuspendedBytesMax;
  if (reply.kind == Reply::Kind::lost || !fits) {
    loop_.cancel(open.timer);
    suspended_.erase(Key(open.key));
    return watch_idle();
  }
  suspended_bytes_ += open.bytes;
  open.question = Value();
  open.outcome = std::move(outcome);
}

// The first try with the answer.
void Server::resume_call(tools::Permit permit, tools::Call call, std::uint32_t suspended_try,
                         async::Done<Outcome> done) {
  const auto found = suspended_.extract(Key{call.invocation, suspended_try});
  if (found.empty()) {
    return loop_.post([done = std::move(done)]() mutable {
      done(tools::make_outcome(
          OutcomeKind::unknown, false, true, "reset",
          "the call that asked was lost before its answer: its connection was lost, or the "
          "process that kept it ended"));
    });
  }
  const std::shared_ptr<OpenCall>& open = found.mapped();
  loop_.cancel(open->timer);
  const Key key{call.invocation, call.try_no};
  if (open->outcome) {
    suspended_bytes_ -= open->bytes;
    watch_idle();
    return loop_.post(
        [done = std::move(done), open]() mutable { done(*std::move(open->outcome)); });
  }
  InFlightCall& flight =
      in_flight_
          .emplace(key, InFlightCall{.permit = std::move(permit),
                                     .call = std::move(call),
                                     .tool = open->tool,
                                     .done = std::move(done),
                                     .started_at = async::BootClock().since_start(),
                                     .open = open})
          .first->second;
  std::move(flight.permit).consume(key.first, key.second);
  open->is_suspended = false;
  open->key = key;
  session_->set_progress_callback(open->request, std::move(flight.call.progress));
  if (!open->question.is_null()) send_answer(key);
  start_timeout(key);
}

// The answer is a message of its own: it is sent within the try's time to be sent, or not at all.
void Server::send_answer(const Key& key) {
  InFlightCall& flight = in_flight_.at(key);
  const Value* answer = flight.call.inputs["answers"].find(kOpenRequest);
  flight.answer_ticket =
      session_->send_answer({.id = flight.open->question,
                             .result = answer != nullptr ? *answer : make_action("cancel"),
                             .send_within = flight.call.send_within,
                             .timeout = std::min(flight.call.timeout, kRequestTimeout),
                             .on_sent = [weak = weak_from_this(), key](const Reply& reply) {
                               if (const auto self = weak.lock()) self->on_answer_sent(key, reply);
                             }});
}

void Server::on_answer_sent(const Key& key, const Reply& reply) {
  const auto found = in_flight_.find(key);
  if (found == in_flight_.end() || std::exchange(found->second.answer_ticket, 0) == 0) return;
  InFlightCall& flight = found->second;
  if (reply.kind == Reply::Kind::not_sent || reply.kind == Reply::Kind::unreachable) {
    suspend(flight.open, {key.first, *suspended_try_of(flight.call.inputs)}, kSuspendedGrace);
    const std::string why = reply.text.empty() ? "" : ": " + reply.text;
    return finish_call(
        key, tools::make_outcome(
                 OutcomeKind::failure, true, true, "not_sent",
                 fmt::format("the answer of the user could not be sent to the MCP server{}", why)));
  }
  flight.open->question = Value();
  if (flight.end_reason == InFlightCall::EndReason::timeout)
    cancel_request(flight, "no answer in time");
  if (flight.end_reason == InFlightCall::EndReason::abandoned)
    cancel_request(flight, "the caller gave up");
}

// Answers `cancel` first, which ends most calls; then cancels the request.
void Server::release_suspended(const Key& key, std::string_view why) {
  const auto found = suspended_.find(key);
  if (found == suspended_.end()) return;
  const std::shared_ptr<OpenCall> open = found->second;
  loop_.cancel(open->timer);
  if (!open->outcome && !open->question.is_null()) {
    session_->send_answer(
        {.id = std::exchange(open->question, Value()), .result = make_action("cancel")});
    open->timer =
        loop_.after(kRequestTimeout, [weak = weak_from_this(), key, why = std::string(why)] {
          if (const auto self = weak.lock()) self->release_suspended(key, why);
        });
    return;
  }
  suspended_.erase(found);
  watch_idle();
  if (open->outcome) {
    suspended_bytes_ -= open->bytes;
    return;
  }
  mark_orphaned(*open);
  session_->cancel_request(open->request, why);
}

// Their connection is gone.
void Server::clear_suspended() {
  for (const auto& [key, open] : suspended_) loop_.cancel(open->timer);
  suspended_.clear();
  suspended_bytes_ = 0;
}

}  // namespace ae::mcp::client

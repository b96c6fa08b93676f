#include "runtime/service/job_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "engine/children/children.h"
#include "log/field_names.h"
#include "runtime/service/call_outcomes.h"

namespace ae::runtime {
namespace {

// How long a call waits for the creation of its addressee before it is tried again.
constexpr Duration kCreationWait = std::chrono::seconds(1);
constexpr Duration kCreationPoll = std::chrono::milliseconds(5);

Outcome outcome_of(const Result<Value>& answer) {
  if (answer) {
    // A signal for a wait that has ended otherwise.
    const Value* const applied = answer->find("applied");
    if (applied != nullptr && *applied == Value(false)) {
      return definite_failure(std::string(code_name(Code::wait_mismatch)),
                              "another answer has ended the wait with this key");
    }
    return {.kind = OutcomeKind::success, .result = Value::object({{"accepted", true}})};
  }
  const Error& error = answer.error();
  const std::string code(code_name(error.code));
  if (error.code == Code::unavailable) return not_sent(error.message);
  if (error.code == Code::unknown_outcome) {
    return {.kind = OutcomeKind::unknown, .error_code = code, .error_message = error.message};
  }
  return definite_failure(code, error.message);
}

engine::ControlRequest request_of(const tools::Call& call) {
  engine::ControlRequest request{.id = call.external_key.text.string(),
                                 .by = fmt::format("job:{}", call.job.text),
                                 .checked_at = {},
                                 .body = {}};
  const Value& payload = call.args[field::payload];
  std::string traceparent = call.trace_headers().traceparent;
  const std::string_view kind = call.args["to"].members()[0].first;
  std::string name(call.args["to"].text(kind));
  if (kind == "key") {
    // A wait for a person or a webhook is not answered by another job.
    request.body =
        engine::SignalRequest{.correlation_key = std::move(name),
                              .wait_type = std::string(to_text(engine::WaitType::signal)),
                              .buffer = true,
                              .payload = payload,
                              .traceparent = std::move(traceparent)};
  } else {
    request.body = engine::MessageRequest{.channel = std::move(name),
                                          .payload = payload,
                                          .traceparent = std::move(traceparent),
                                          .control = {}};
  }
  return request;
}

}  // namespace

struct JobMessages::Sending {
  JobId from, to;
  engine::ControlRequest request;
  Duration wait_max;  // for the creation of the addressee
  Duration waited{};
  async::Done<Outcome> done;
};

void JobMessages::perform(tools::Permit, tools::Call call, async::Done<Outcome> done) {
  // Never inside of this call.
  done = [&loop = loop_, done = std::move(done)](Outcome outcome) mutable {
    loop.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
      done(std::move(outcome));
    });
  };
  const Value& addressee = call.args["to"];
  if (!addressee.is_object() || addressee.size() != 1) {  // the schema of the plan allows it
    return done(
        definite_failure(std::string(code_name(Code::input_invalid)), "`to` has one member"));
  }
  auto to = job_id_from_text(call.args.text("job"));
  if (!to) {
    return done(definite_failure(std::string(code_name(Code::not_found)),
                                 fmt::format("there is no job \"{}\"", call.args.text("job"))));
  }
  send(std::make_shared<Sending>(Sending{.from = call.job,
                                         .to = *std::move(to),
                                         .request = request_of(call),
                                         .wait_max = std::min(kCreationWait, call.send_within),
                                         .done = std::move(done)}));
}

// Has the sender a call that creates the addressee, and no child yet?
bool JobMessages::is_being_created(const Sending& sending) const {
  const engine::State* const sender = host_.state_of(sending.from);
  return sender != nullptr && std::ranges::any_of(sender->steps, [&](const engine::Step& step) {
           if (step.phase == engine::StepPhase::done || !sender->has_tool(step)) return false;
           const bool has_child = step.call && step.call->questions;
           return sender->tool_of(step).child && !has_child &&
                  engine::child_of(*sender, step) == sending.to;
         });
}

void JobMessages::send(std::shared_ptr<Sending> sending) {
  if (is_being_created(*sending) && sending->waited + kCreationPoll <= sending->wait_max) {
    sending->waited += kCreationPoll;
    loop_.after(kCreationPoll, [this, alive = alive_.watch(), sending]() mutable {
      if (alive) send(std::move(sending));
    });
    return;
  }
  submitter_.submit(sending->to, sending->request,
                    [this, alive = alive_.watch(), sending](const Result<Value>& answer) {
                      if (!alive) return;
                      const bool is_missing = !answer && answer.error().code == Code::not_found;
                      if (is_missing && is_being_created(*sending)) {
                        return sending->done(not_sent("the job is not created yet"));
                      }
                      sending->done(outcome_of(answer));
                    });
}

}  // namespace ae::runtime

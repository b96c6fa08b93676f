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
constexpr const char* kSenderGone = "its job does not run here any more";

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
  if (error.code == Code::stale_attempt) return not_sent(kSenderGone);
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
  store::HeldJob sender;  // as it was when the call was permitted
  JobId to;
  engine::ControlRequest request;
  Duration wait_max;  // for the creation of the addressee
  Duration waited{};
  std::optional<StepId> creator = {};  // the call of the sender that creates the addressee
  bool is_last = false;                // it is not tried again if the addressee does not exist
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
  const engine::State* const sender = host_.state_of(call.job);
  if (sender == nullptr) return done(not_sent(kSenderGone));
  send(std::make_shared<Sending>(Sending{.sender = {call.job, {sender->attempt, sender->epoch}},
                                         .to = *std::move(to),
                                         .request = request_of(call),
                                         .wait_max = std::min(kCreationWait, call.send_within),
                                         .done = std::move(done)}));
}

// The step of the sender whose call creates the addressee; nullptr: none does.
const engine::Step* JobMessages::creator_of(Sending& sending, const engine::State& sender) {
  if (sending.creator) return sender.find_step(*sending.creator);
  const auto found = std::ranges::find_if(sender.steps, [&](const engine::Step& step) {
    return sender.has_tool(step) && sender.tool_of(step).child &&
           engine::child_of(sender, step) == sending.to;
  });
  if (found == sender.steps.end()) return nullptr;
  sending.creator = found->id;
  return &*found;
}

void JobMessages::send(std::shared_ptr<Sending> sending) {
  submitter_.submit(
      sending->to, sending->request,
      [this, alive = alive_.watch(), sending](const Result<Value>& answer) {
        if (!alive) return;
        const bool is_missing = !answer && answer.error().code == Code::not_found;
        if (!is_missing || sending->is_last) return sending->done(outcome_of(answer));
        await_creation(sending, answer.error());
      },
      sending->sender);
}

// The addressee does not exist.
void JobMessages::await_creation(const std::shared_ptr<Sending>& sending, const Error& error) {
  const engine::State* const sender = host_.state_of(sending->sender.job);
  if (sender == nullptr) return sending->done(not_sent(kSenderGone));
  const engine::Step* const creator = creator_of(*sending, *sender);
  if (creator == nullptr) return sending->done(outcome_of(std::unexpected(error)));
  // The call may have created it since then.
  sending->is_last =
      creator->phase == engine::StepPhase::done || (creator->call && creator->call->questions);
  if (sending->is_last) return send(sending);
  if (sending->waited + kCreationPoll > sending->wait_max) {
    return sending->done(not_sent("the job is not created yet"));
  }
  sending->waited += kCreationPoll;
  loop_.after(kCreationPoll, [this, alive = alive_.watch(), sending] {
    if (alive) send(sending);
  });
}

}  // namespace ae::runtime

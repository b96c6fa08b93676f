// What others want of a job: signals, messages, cancels, pauses, resolutions, more budget.
#include <utility>

#include "api/answered.h"
#include "api/asked.h"
#include "api/lacking.h"
#include "base/trace_context.h"

namespace ae::api {
void Api::act(Ask ask, engine::Act act, int status) {
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  act.by = ask->request.by;
  const bool says = act.kind == engine::Act::Kind::signal || act.kind == engine::Act::Kind::message;
  if (const auto context = trace_context(ask->request.traceparent, {}); context && says) {
    act.traceparent = traceparent(context->trace_id, context->parent_id, context->flags);
  }
  auto kept = std::make_shared<const engine::Act>(act);
  runtime_.act(*job, std::move(act),
               [this, alive = std::weak_ptr(alive_), ask, status, kept](Result<Value> answer) {
                 if (alive.lock()) acted(ask, *kept, status, std::move(answer));
               });
}

void Api::acted(const Ask& ask, const engine::Act& act, int status, Result<Value> answer) {
  if (!answer && may_be_answered(act, answer.error().code)) {
    return answered(ask, act, std::move(answer));
  }
  if (!answer && answer.error().code == Code::not_found) return ask->refuse(no_job(ask->id));
  if (act.kind == engine::Act::Kind::budget && !answer) return lacks(ask, std::move(answer));
  if (!answer) return ask->refuse(answer.error());
  if ((*answer)["raised"] == Value(true)) return lacks(ask, std::move(answer));
  if ((*answer)["raised"] == Value(false)) *answer = answer->with("duplicate", true);
  const bool duplicate = answer->find("duplicate") != nullptr;
  if (duplicate) return answered(ask, act, std::move(answer));
  const bool accepted = answer->find("accepted") || answer->find("buffered");
  ask->answer(duplicate ? 200 : accepted ? 202 : status, std::move(*answer));
}

// Somebody answers what is not asked any more: the job's log says who answered it before.
void Api::answered(const Ask& ask, const engine::Act& act, Result<Value> answer) {
  auto log = [ask, act, answer = std::move(answer)](Result<runtime::Runtime::Read> read) mutable {
    if (!read && read.error().code == Code::not_found) return ask->refuse(no_job(ask->id));
    if (read) {
      answer = answer ? with_answerer(*std::move(answer), act, read->events)
                      : answered_before(act, read->events, std::move(answer).error());
    }
    if (!answer) return ask->refuse(answer.error());
    ask->answer(200, *std::move(answer));
  };
  read_in_turn(ask, *job_id_from_text(ask->id), std::move(log));
}

// Whoever raises a budget, in vain or not far enough, is told all that the job lacks.
void Api::lacks(const Ask& ask, Result<Value> answer) {
  auto told = [ask, answer = std::move(answer)](Result<runtime::Runtime::Read> read) mutable {
    const bool held = !read || read->row.claim;
    if (answer) {
      return ask->answer(200, held ? *answer : with_still_lacking(read->state, *answer));
    }
    ask->refuse(held ? answer.error() : with_lacking(read->state, answer.error()));
  };
  runtime_.read_state(*job_id_from_text(ask->id), std::move(told));
}

void Api::signal(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body,
                            {"correlation_key", "wait_type", "payload", "message_id", "buffer"}));
    engine::Act wish{.kind = engine::Act::Kind::signal};
    AE_ASSIGN(wish.correlation_key, fields.text("correlation_key"));
    AE_ASSIGN(wish.wait_type, fields.text("wait_type"));
    AE_ASSIGN(wish.id, fields.text("message_id"));
    if (const Value& buffer = fields["buffer"]; !buffer.is_null()) {
      if (!buffer.is_bool()) return fail(Code::input_invalid, "\"buffer\" must be true or false");
      wish.buffer = buffer.as_bool();
    }
    if (wish.correlation_key.empty()) {
      return fail(Code::wait_mismatch,
                  "\"correlation_key\" is missing: the key of the wait to answer");
    }
    wish.payload = fields["payload"];
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  // Who starts work does not answer for the people whom it asks; who answers for them steers nothing else.
  const Role role = ask->request.role;
  if (role == Role::operator_) {
    if (act->wait_type == "human") {
      return ask->refuse(role_missing(role, roles_with(Access::decide)));
    }
    if (act->wait_type.empty()) return signal_as_operator(std::move(ask), std::move(*act));
  }
  if (role == Role::approver) {
    if (act->wait_type.empty()) act->wait_type = "human";
    if (act->wait_type != "human") {
      return ask->refuse(role_missing(role, roles_with(Access::operate)));
    }
  }
  this->act(ask, std::move(*act), 200);
}

// The act then says which type of wait it is for, so that it cannot become the answer of a person later either.
void Api::signal_as_operator(Ask ask, engine::Act act) {
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  runtime_.read_state(*job, [this, alive = std::weak_ptr(alive_), ask,
                             act = std::move(act)](Result<runtime::Runtime::Read> read) mutable {
    if (!alive.lock()) return;
    act.wait_type = to_text(engine::WaitType::signal);
    if (read) {  // otherwise the act itself says why not
      const auto wait = read->state.waits.find(act.correlation_key);
      if (wait != read->state.waits.end()) act.wait_type = to_text(wait->second.type);
    }
    if (act.wait_type == "human") {
      return ask->refuse(role_missing(Role::operator_, roles_with(Access::decide)));
    }
    this->act(ask, std::move(act), 200);
  });
}

void Api::cancel(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields, Fields::parse(ask->request.body, {"reason", "compensate"}));
    engine::Act wish{.kind = engine::Act::Kind::cancel};
    AE_ASSIGN(wish.reason, fields.text("reason"));
    if (const Value& compensate = fields["compensate"]; compensate.is_bool()) {
      wish.compensate = compensate.as_bool();
    } else if (!compensate.is_null()) {
      return fail(Code::input_invalid, "`compensate` must be true or false");
    }
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 202);
}

void Api::message(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"channel", "payload", "message_id"}));
    engine::Act wish{.kind = engine::Act::Kind::message};
    AE_ASSIGN(wish.channel, fields.text("channel"));
    AE_ASSIGN(wish.id, fields.text("message_id"));
    if (wish.channel.empty()) return fail(Code::input_invalid, "\"channel\" is missing");
    wish.payload = fields["payload"];
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 202);
}

void Api::pause(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields, Fields::parse(ask->request.body, {"reason"}));
    engine::Act wish{.kind = engine::Act::Kind::pause};
    AE_ASSIGN(wish.reason, fields.text("reason"));
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 202);
}

void Api::resume(Ask ask) {
  auto known = [&]() -> Status {
    AE_TRY(ask->query.only({}));
    AE_TRY(Fields::parse(ask->request.body, {"reason"}));
    return {};
  }();
  if (!known) return ask->refuse(known.error());
  act(ask, {.kind = engine::Act::Kind::resume}, 202);
}

void Api::raise_budget(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body,
                            {"tokens", "cost", "model_calls", "tool_calls", "wall", "note"}));
    engine::Act wish{.kind = engine::Act::Kind::budget};
    AE_ASSIGN(wish.reason, fields.text("note"));
    std::vector<Member> asked;
    for (const auto& [name, value] : fields.object().members()) {
      if (name != "note" && !value.is_null()) asked.emplace_back(name, value);
    }
    AE_ASSIGN(const engine::Limits limits, engine::limits_asked(Value::object(std::move(asked))));
    wish.payload = stored(limits);
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 200);
}

void Api::resolve(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"idempotency_key", "resolution", "result", "note",
                                                "try", "looked_at", "step_id"}));
    engine::Act wish{.kind = engine::Act::Kind::resolve};
    AE_ASSIGN(wish.idempotency_key, fields.text("idempotency_key"));
    AE_ASSIGN(wish.step_id, fields.text("step_id"));
    AE_ASSIGN(wish.resolution, fields.text("resolution"));
    AE_ASSIGN(wish.reason, fields.text("note"));
    if (wish.idempotency_key.empty() == wish.step_id.empty()) {
      return fail(Code::input_invalid,
                  "set either \"idempotency_key\" (of a call with an unknown outcome) or "
                  "\"step_id\" (of a failed confirmation)");
    }
    if (const Value& of = fields["try"]; !of.is_null()) {
      if (!of.is_integer() || of.as_int() < 1 || of.as_int() > 1'000'000) {
        return fail(Code::input_invalid,
                    "\"try\" must be the number of a try, as shown in in_doubt");
      }
      wish.try_no = static_cast<std::uint32_t>(of.as_int());
    }
    AE_ASSIGN(const std::string looked_at, fields.text("looked_at"));
    if (!looked_at.empty()) {
      auto at = instant_from_text(looked_at);
      if (!at) return std::unexpected(std::move(at).error().in("\"looked_at\""));
      wish.looked_at = *at;
    }
    if (const Value* result = fields.find("result")) wish.result = *result;
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 200);
}

}  // namespace ae::api

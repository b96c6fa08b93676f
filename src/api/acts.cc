// What others want of a job: signals, cancels, resolutions.
#include <utility>

#include "api/asked.h"

namespace ae::api {

void Api::act(Ask ask, engine::Act act, int status) {
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  act.by = ask->request.by;
  runtime_.act(*job, std::move(act), [ask, status](Result<Value> answer) {
    if (!answer && answer.error().code == Code::not_found) {
      return ask->refuse({Code::not_found, "there is no job " + ask->id +
                                               " in this store; `aetheris jobs` lists them"});
    }
    if (!answer) return ask->refuse(answer.error());
    const bool accepted = answer->find("accepted") != nullptr;
    ask->answer(accepted ? 202 : status, std::move(*answer));
  });
}

void Api::signal(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(
        const Fields fields,
        Fields::parse(ask->request.body, {"correlation_key", "wait_type", "payload", "message_id"},
                      {{"buffer", "signals for waits that are not open yet come later"}}));
    engine::Act wish{.kind = engine::Act::Kind::signal};
    AE_ASSIGN(wish.correlation_key, fields.text("correlation_key"));
    AE_ASSIGN(wish.wait_type, fields.text("wait_type"));
    AE_ASSIGN(wish.id, fields.text("message_id"));
    if (wish.correlation_key.empty()) {
      return fail(Code::wait_mismatch,
                  "\"correlation_key\" is missing: it names the wait that this signal answers");
    }
    wish.payload = fields["payload"];
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 200);
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

void Api::resolve(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"idempotency_key", "resolution", "result", "note"},
                            {{"step_id", "confirmations come later"}}));
    engine::Act wish{.kind = engine::Act::Kind::resolve};
    AE_ASSIGN(wish.idempotency_key, fields.text("idempotency_key"));
    AE_ASSIGN(wish.resolution, fields.text("resolution"));
    AE_ASSIGN(wish.reason, fields.text("note"));
    if (wish.resolution == "accept") {
      return fail(Code::unsupported, "\"accept\" answers confirmations, which come later");
    }
    if (wish.idempotency_key.empty()) {
      return fail(Code::input_invalid,
                  "\"idempotency_key\" is missing: it names the call in doubt");
    }
    if (const Value* result = fields.find("result")) wish.result = *result;
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 200);
}

}  // namespace ae::api

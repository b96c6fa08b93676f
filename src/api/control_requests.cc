// Control requests: signals, messages, cancels, pauses, resolutions, budget raises.
#include "api/control_requests.h"

#include <utility>

#include "api/budget_shortfall.h"
#include "api/command_line.h"
#include "api/duplicate_answer.h"
#include "api/operations.h"
#include "api/read.h"
#include "base/trace_context.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

// For an answer to a closed question: adds the first answer from the job's log.
void answer_duplicate(ApiContext& api, const RequestPtr& ctx, const engine::ControlRequest& control,
                      Result<Value> answer) {
  struct Completed {
    Result<Value> answer;
  };
  compute<Completed>(
      api, ctx, *job_id_from_text(ctx->id),
      [control, answer](Snapshot& read) -> Result<Completed> {
        if (answer) return Completed{add_previous_answerer(*answer, control, read.events)};
        return Completed{find_previous_answer(control, read.events, answer.error())};
      },
      [ctx, answer](Result<Completed> completed) {
        if (!completed && completed.error().code == Code::not_found) {
          return ctx->refuse(completed.error());
        }
        const Result<Value>& known = completed ? completed->answer : answer;
        if (!known) return ctx->refuse(known.error());
        ctx->answer(200, *known);
      });
}

// After a budget raise that is refused or too low: adds all limits that are still exceeded.
void answer_with_shortfall(ApiContext& api, const RequestPtr& ctx, Result<Value> answer) {
  auto on_state = [ctx,
                   answer = std::move(answer)](Result<runtime::Runtime::JobSnapshot> read) mutable {
    const bool held = !read || read->row.claim;
    if (answer) {
      return ctx->answer(200, held ? *answer : add_remaining_shortfall(read->state, *answer));
    }
    ctx->refuse(held ? answer.error() : add_shortfall(read->state, answer.error()));
  };
  api.runtime.read_state(*job_id_from_text(ctx->id), std::move(on_state));
}

void on_request_done(ApiContext& api, const RequestPtr& ctx, const engine::ControlRequest& control,
                     int status, Result<Value> answer) {
  if (answer && (*answer)["next"].is_object()) {
    *answer = answer->with("next", command_line((*answer)["next"]));
  }
  if (!answer && may_be_duplicate_answer(control, answer.error().code)) {
    return answer_duplicate(api, ctx, control, std::move(answer));
  }
  if (!answer && answer.error().code == Code::not_found)
    return ctx->refuse(missing_job_error(ctx->id));
  if (control.is<engine::BudgetRequest>() && !answer)
    return answer_with_shortfall(api, ctx, std::move(answer));
  if (!answer) return ctx->refuse(answer.error());
  if ((*answer)["raised"] == Value(true)) return answer_with_shortfall(api, ctx, std::move(answer));
  if ((*answer)["raised"] == Value(false)) *answer = answer->with("duplicate", true);
  const bool duplicate = answer->find("duplicate") != nullptr;
  if (duplicate) return answer_duplicate(api, ctx, control, std::move(answer));
  const bool accepted = answer->find("accepted") || answer->find("buffered");
  ctx->answer(duplicate ? 200 : accepted ? 202 : status, std::move(*answer));
}

// The control request then has the type of its wait, so that it cannot become the answer of a user
// later.
void signal_as_operator(ApiContext& api, RequestPtr ctx, std::string id,
                        engine::SignalRequest signal) {
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  api.runtime.read_state(
      *job, [&api, alive = api.alive.watch(), ctx, id = std::move(id),
             signal = std::move(signal)](Result<runtime::Runtime::JobSnapshot> read) mutable {
        if (!alive) return;
        signal.wait_type = to_text(engine::WaitType::signal);
        if (read) {  // otherwise the control request itself fails
          const auto wait = read->state.waits.find(signal.correlation_key);
          if (wait != read->state.waits.end()) signal.wait_type = to_text(wait->second.type);
        }
        if (signal.wait_type == "human") {
          return ctx->refuse(missing_role_error(Role::operator_, roles_with(Access::decide)));
        }
        submit_request(api, ctx, {.id = std::move(id), .body = std::move(signal)}, 200);
      });
}

}  // namespace

void submit_request(ApiContext& api, RequestPtr ctx, engine::ControlRequest control, int status) {
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  control.by = ctx->request.by;
  if (const auto context = trace_context(ctx->request.traceparent, {})) {
    std::visit(
        [&](auto& body) {
          if constexpr (requires { body.traceparent; }) {
            body.traceparent = traceparent(context->trace_id, context->parent_id, context->flags);
          }
        },
        control.body);
  }
  auto kept = std::make_shared<const engine::ControlRequest>(control);
  api.runtime.submit_request(
      *job, std::move(control),
      [&api, alive = api.alive.watch(), ctx, status, kept](Result<Value> answer) {
        if (alive) on_request_done(api, ctx, *kept, status, std::move(answer));
      });
}

void operations::signal(ApiContext& api, RequestPtr ctx) {
  std::string id;
  auto signal = [&]() -> Result<engine::SignalRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::SignalRequest params;
    AE_ASSIGN(params.correlation_key, fields.text(field::correlation_key));
    AE_ASSIGN(params.wait_type, fields.text(field::wait_type));
    AE_ASSIGN(id, fields.text(field::message_id));
    if (const Value& buffer = fields["buffer"]; !buffer.is_null()) {
      if (!buffer.is_bool()) return fail(Code::input_invalid, "\"buffer\" must be true or false");
      params.buffer = buffer.as_bool();
    }
    if (params.correlation_key.empty()) {
      return fail(Code::wait_mismatch,
                  "\"correlation_key\" is missing: the key of the wait to answer");
    }
    params.payload = fields[field::payload];
    return params;
  }();
  if (!signal) return ctx->refuse(signal.error());
  // An operator starts work and must not answer its questions to users; an approver answers them
  // and must not control jobs.
  const Role role = ctx->request.role;
  if (role == Role::operator_) {
    if (signal->wait_type == "human") {
      return ctx->refuse(missing_role_error(role, roles_with(Access::decide)));
    }
    if (signal->wait_type.empty())
      return signal_as_operator(api, std::move(ctx), std::move(id), *std::move(signal));
  }
  if (role == Role::approver) {
    if (signal->wait_type.empty()) signal->wait_type = "human";
    if (signal->wait_type != "human") {
      return ctx->refuse(missing_role_error(role, roles_with(Access::operate)));
    }
  }
  submit_request(api, ctx, {.id = std::move(id), .body = *std::move(signal)}, 200);
}

void operations::cancel(ApiContext& api, RequestPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::CancelRequest cancel;
    AE_ASSIGN(cancel.reason, fields.text(field::reason));
    if (const Value& compensate = fields[field::compensate]; compensate.is_bool()) {
      cancel.compensate = compensate.as_bool();
    } else if (!compensate.is_null()) {
      return fail(Code::input_invalid, "`compensate` must be true or false");
    }
    return engine::ControlRequest{.body = std::move(cancel)};
  }();
  if (!control) return ctx->refuse(control.error());
  submit_request(api, ctx, std::move(*control), 202);
}

void operations::message(ApiContext& api, RequestPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::MessageRequest message;
    AE_ASSIGN(message.channel, fields.text(field::channel));
    AE_ASSIGN(std::string id, fields.text(field::message_id));
    if (message.channel.empty()) return fail(Code::input_invalid, "\"channel\" is missing");
    message.payload = fields[field::payload];
    AE_ASSIGN(message.control, fields.text(field::control));
    return engine::ControlRequest{.id = std::move(id), .body = std::move(message)};
  }();
  if (!control) return ctx->refuse(control.error());
  submit_request(api, ctx, std::move(*control), 202);
}

void operations::pause(ApiContext& api, RequestPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::PauseRequest pause;
    AE_ASSIGN(pause.reason, fields.text(field::reason));
    return engine::ControlRequest{.body = std::move(pause)};
  }();
  if (!control) return ctx->refuse(control.error());
  submit_request(api, ctx, std::move(*control), 202);
}

void operations::resume(ApiContext& api, RequestPtr ctx) {
  submit_request(api, ctx, {.body = engine::ResumeRequest{}}, 202);
}

void operations::raise_budget(ApiContext& api, RequestPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::BudgetRequest budget;
    AE_ASSIGN(budget.reason, fields.text(field::note));
    std::vector<Member> members;
    for (const auto& [name, value] : fields.object().members()) {
      if (name != field::note && !value.is_null()) members.emplace_back(name, value);
    }
    AE_ASSIGN(budget.limits, engine::parse_limits(Value::object(std::move(members))));
    return engine::ControlRequest{.body = std::move(budget)};
  }();
  if (!control) return ctx->refuse(control.error());
  submit_request(api, ctx, std::move(*control), 200);
}

void operations::resolve(ApiContext& api, RequestPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::ControlRequest params;
    engine::ResolveRequest& resolve = params.body.emplace<engine::ResolveRequest>();
    AE_ASSIGN(resolve.idempotency_key, fields.text(field::idempotency_key));
    AE_ASSIGN(resolve.step_id, fields.text(field::step_id));
    AE_ASSIGN(resolve.resolution, fields.text(field::resolution));
    AE_ASSIGN(resolve.reason, fields.text(field::note));
    if (resolve.idempotency_key.empty() == resolve.step_id.empty()) {
      return fail(Code::input_invalid,
                  "set either \"idempotency_key\" (of a call with an unknown outcome) or "
                  "\"step_id\" (of a failed confirmation)");
    }
    if (const Value& of = fields[field::try_]; !of.is_null()) {
      if (!of.is_integer() || of.as_int() < 1 || of.as_int() > 1'000'000) {
        return fail(Code::input_invalid,
                    "\"try\" must be the number of a try, as shown in in_doubt");
      }
      resolve.try_no = static_cast<std::uint32_t>(of.as_int());
    }
    AE_ASSIGN(const std::string checked_at, fields.text("checked_at"));
    if (!checked_at.empty()) {
      auto at = instant_from_text(checked_at);
      if (!at) return std::unexpected(std::move(at).error().with_context("\"checked_at\""));
      params.checked_at = *at;
    }
    if (const Value* result = fields.find(field::result)) resolve.result = *result;
    return params;
  }();
  if (!control) return ctx->refuse(control.error());
  submit_request(api, ctx, std::move(*control), 200);
}

}  // namespace ae::api

// problem+json: encode and decode.
#include "api/problem.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "api/command_line.h"
#include "engine/state/action.h"
#include "log/field_names.h"

namespace ae::api {

int http_status(Code code) {
  switch (code) {
    case Code::not_found:
      return 404;
    case Code::expression_failed:
    case Code::input_invalid:
    case Code::plan_invalid:
    case Code::unsupported:
    case Code::usage:
    case Code::wait_mismatch:
      return 400;
    case Code::unauthorized:
      return 401;
    case Code::denied:
    case Code::forbidden:
      return 403;
    case Code::method_not_allowed:
      return 405;
    case Code::already_exists:
    case Code::approval_edited:
    case Code::call_pending:
    case Code::correlation_key_reused:
    case Code::effects_repeated:
    case Code::events_limit:
    case Code::execution_version_mismatch:
    case Code::held:
    case Code::idempotency_conflict:
    case Code::inbox_pending:
    case Code::job_terminal:
    case Code::needs_version:
    case Code::not_held:
    case Code::not_in_doubt:
    case Code::not_paused:
    case Code::not_settled:
    case Code::sequence_conflict:
    case Code::signals_limit:
    case Code::stale_attempt:
    case Code::wait_expired:
      return 409;
    case Code::payload_too_large:
      return 413;
    case Code::unsupported_media_type:
      return 415;
    case Code::rate_limited:
      return 429;
    case Code::store_locked:
    case Code::store_rolled_back:
    case Code::store_stopped:
    case Code::unavailable:
      return 503;
    case Code::unknown_outcome:
      return 504;
    // Codes that end or damage a job. No response of this API has them, but a log can.
    case Code::budget_exceeded:
    case Code::confirmation_failed:
    case Code::context_exceeded:
    case Code::deadline_exceeded:
    case Code::evicted:
    case Code::invocation_in_doubt:
    case Code::log_corrupt:
    case Code::max_attempts:
    case Code::non_determinism:
    case Code::plan_missing:
    case Code::rejected:
    case Code::replay_verification_human_required:
    case Code::secret_missing:
    case Code::tool_failed:
    case Code::tool_not_granted:
    case Code::tool_output_invalid:
    case Code::turns_limit:
      return 500;
  }
  return 500;
}

Value problem(const Error& error, int status) {
  const std::string code(code_name(error.code));
  std::string title = code;
  std::ranges::replace(title, '_', ' ');
  Value body = Value::object({{field::code, code},
                              {field::detail, error.message},
                              {"status", status == 0 ? http_status(error.code) : status},
                              {"title", title},
                              {"type", fmt::format("urn:aetheris:error:{}", code)}});
  if (!error.action) return body;
  const Value action = engine::action_json(*error.action);
  body = body.with("action", action);
  const std::string request = request_line(action);
  return request.empty() ? body : body.with("act", request);
}

Error missing_job_error(std::string_view id) {
  return {Code::not_found, fmt::format("there is no job {} in this store", id),
          Action{.act = act::kJobs}};
}

Error error_of_problem(const Value& body, int status) {
  std::string detail(body.text(field::detail));
  if (const auto code = code_from_name(body.text(field::code)))
    return {*code, std::move(detail), engine::action_from_json(body["action"])};
  if (detail.empty()) detail = fmt::format("the store's owner returned status {}", status);
  return {Code::unavailable, std::move(detail)};
}

}  // namespace ae::api

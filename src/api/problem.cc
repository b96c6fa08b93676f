// problem+json, both ways.
#include "api/problem.h"

#include <algorithm>
#include <iterator>
#include <string_view>

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
    case Code::rate_limited:
      return 429;
    case Code::store_locked:
    case Code::store_rolled_back:
    case Code::store_stopped:
    case Code::unavailable:
      return 503;
    case Code::unknown_outcome:
      return 504;
    // What a job can end with, or damage: no answer to a request of this API has these, but a log may.
    case Code::budget_exceeded:
    case Code::confirmation_failed:
    case Code::deadline_exceeded:
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

namespace {

// What a client of the API calls where a message names a command.
struct Counterpart {
  std::string_view command, route;
};
constexpr Counterpart kCounterparts[] = {
    {"jobs", "GET /api/jobs"},
    {"job", "GET /api/jobs/{id}"},
    {"events", "GET /api/jobs/{id}/events"},
    {"trace", "GET /api/jobs/{id}/trace"},
    {"verify", "GET /api/jobs/{id}/verify"},
    {"approvals", "GET /api/approvals"},
    {"approve", "POST /api/approvals/{id}"},
    {"fork", "POST /api/jobs/{id}/fork"},
    {"pause", "POST /api/jobs/{id}/pause"},
    {"plan", "POST /api/jobs/{id}/plan"},
    {"run", "POST /api/jobs"},
    {"keys", "GET /api/keys"},
};

// "" = the message names no command that has one.
std::string_view act_of(std::string_view message) {
  constexpr std::string_view kProgram = "`aetheris ";
  const std::size_t at = message.find(kProgram);
  if (at == message.npos) return "";
  message.remove_prefix(at + kProgram.size());
  const std::string_view command = message.substr(0, message.find_first_of(" `"));
  const auto found = std::ranges::find(kCounterparts, command, &Counterpart::command);
  return found == std::end(kCounterparts) ? "" : found->route;
}

}  // namespace

Value problem(const Error& error, int status) {
  const std::string code(code_name(error.code));
  std::string title = code;
  std::ranges::replace(title, '_', ' ');
  Value body = Value::object({{"code", code},
                              {"detail", error.message},
                              {"status", status == 0 ? http_status(error.code) : status},
                              {"title", title},
                              {"type", "urn:aetheris:error:" + code}});
  const std::string_view act = act_of(error.message);
  return act.empty() ? body : body.with("act", std::string(act));
}

Error error_of_problem(const Value& body, int status) {
  const std::string_view name = body.text("code");
  std::string detail(body.text("detail"));
#define X(code_) \
  if (name == #code_) return Error{Code::code_, std::move(detail)};
  AE_ERROR_CODES(X)
#undef X
  if (detail.empty()) detail = "the store's owner returned status " + std::to_string(status);
  return Error{Code::unavailable, std::move(detail)};
}

}  // namespace ae::api

// problem+json: encode and decode.
#include "api/problem.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

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

// A phrase of a message for users of the command line, and the same for clients of the API. `*` is
// an id. Recorded messages of the engine name commands; those of this folder name requests.
struct Phrase {
  std::string_view command, request;
};
// If one phrase is a prefix of another, the longer one is first.
constexpr Phrase kPhrases[] = {
    {"`aetheris approve` and `aetheris reject` send it", "POST /api/approvals/{id} sends it"},
    {"`aetheris approve ID --arguments JSON`, or \"arguments\" of POST /api/approvals/{id}",
     "send \"arguments\" with POST /api/approvals/{id}"},
    {"`aetheris approve ID --arguments JSON`", "POST /api/approvals/{id}"},
    {"`aetheris approvals`", "GET /api/approvals"},
    {"`aetheris events`", "GET /api/jobs/{id}/events"},
    {"`aetheris fork`", "POST /api/jobs/{id}/fork"},
    {"`aetheris pause`", "POST /api/jobs/{id}/pause"},
    {"`aetheris trace`", "GET /api/jobs/{id}/trace"},
    {"`aetheris verify *`", "GET /api/jobs/*/verify"},
    {"`aetheris job *`", "GET /api/jobs/*"},
    {"`aetheris jobs`", "GET /api/jobs"},
    {"`aetheris keys list`", "GET /api/keys"},
    {"`aetheris keys create`", "POST /api/keys"},
    {"allow it with --repeat-effects or --repeat STEP", "allow it with repeat_effects"},
};

bool in_path(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-._:~%/").find(c) != std::string_view::npos;
}

struct Match {
  std::size_t length;
  std::string_view id;  // the text of `*`
};

// Does `text` begin with the phrase? No match if the path continues after it.
std::optional<Match> matched(std::string_view text, std::string_view phrase) {
  const std::size_t star = phrase.find('*');
  const std::string_view head = phrase.substr(0, star);
  if (!text.starts_with(head)) return std::nullopt;
  Match match{.length = head.size(), .id = {}};
  if (star != phrase.npos) {
    std::size_t end = match.length;
    while (end < text.size() && in_path(text[end]) && text[end] != '/') ++end;
    match.id = text.substr(match.length, end - match.length);
    const std::string_view tail = phrase.substr(star + 1);
    if (match.id.empty() || !text.substr(end).starts_with(tail)) return std::nullopt;
    match.length = end + tail.size();
  }
  if (match.length < text.size() && in_path(text[match.length])) return std::nullopt;
  return match;
}

std::string replaced(std::string_view text, std::string_view Phrase::* from,
                     std::string_view Phrase::* to) {
  std::string out;
  while (!text.empty()) {
    std::size_t taken = 0;
    for (const Phrase& phrase : kPhrases) {
      const auto match = matched(text, phrase.*from);
      if (!match) continue;
      const std::string_view with = phrase.*to;
      const std::size_t star = with.find('*');
      out.append(with.substr(0, star));
      if (star != with.npos) out.append(match->id).append(with.substr(star + 1));
      taken = match->length;
      break;
    }
    if (taken == 0) {
      out += text.front();
      taken = 1;
    }
    text.remove_prefix(taken);
  }
  return out;
}

// The first request that a message names, or "".
std::string_view request_in(std::string_view detail) {
  for (const std::string_view method : {"GET /api/", "POST /api/"}) {
    const std::size_t at = detail.find(method);
    if (at == detail.npos) continue;
    std::size_t end = at + method.size();
    while (end < detail.size() &&
           (in_path(detail[end]) || detail[end] == '{' || detail[end] == '}')) {
      ++end;
    }
    return detail.substr(at, end - at);
  }
  return "";
}

}  // namespace

std::string with_requests(std::string_view message) {
  return replaced(message, &Phrase::command, &Phrase::request);
}

std::string with_commands(std::string_view message) {
  return replaced(message, &Phrase::request, &Phrase::command);
}

Value problem(const Error& error, int status) {
  const std::string code(code_name(error.code));
  std::string title = code;
  std::ranges::replace(title, '_', ' ');
  const std::string detail = with_requests(error.message);
  Value body = Value::object({{field::code, code},
                              {field::detail, detail},
                              {"status", status == 0 ? http_status(error.code) : status},
                              {"title", title},
                              {"type", fmt::format("urn:aetheris:error:{}", code)}});
  const std::string_view request = request_in(detail);
  return request.empty() ? body : body.with("act", std::string(request));
}

Error missing_job_error(std::string_view id) {
  return {Code::not_found,
          fmt::format("there is no job {} in this store; GET /api/jobs lists them", id)};
}

Error error_of_problem(const Value& body, int status) {
  const std::string_view name = body.text(field::code);
  std::string detail(body.text(field::detail));
#define X(code_) \
  if (name == #code_) return Error{Code::code_, std::move(detail)};
  AE_ERROR_CODES(X)
#undef X
  if (detail.empty()) detail = fmt::format("the store's owner returned status {}", status);
  return Error{Code::unavailable, std::move(detail)};
}

}  // namespace ae::api

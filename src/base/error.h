// The error type of the whole product: a stable code, a sentence with the cause, and perhaps an
// action: what the caller can do next, as data. Only api and cli make text of it.
//
// A code exists only if callers handle it differently. Codes are spelled as they are stored, shown
// and documented (docs/errors/). `unavailable` means that nothing changed; `unknown_outcome` means
// that the effect may have happened: check before you retry. The two are never merged.
// Threads: values.
#pragma once

#include <fmt/core.h>

#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/action.h"
#include "base/boxed.h"

namespace ae {

// clang-format off
#define AE_ERROR_CODES(X)                                                                                    \
  X(already_exists) X(approval_edited) X(budget_exceeded) X(call_pending) X(confirmation_failed) X(context_exceeded) X(correlation_key_reused)     \
  X(deadline_exceeded) X(denied) X(effects_repeated) X(events_limit) X(evicted) X(execution_version_mismatch) X(expression_failed) X(forbidden) X(held)                    \
  X(idempotency_conflict) X(inbox_pending) X(input_invalid) X(invocation_in_doubt)                           \
  X(job_terminal) X(log_corrupt) X(max_attempts) X(method_not_allowed) X(needs_version)                                            \
  X(non_determinism) X(not_found) X(not_held) X(not_in_doubt)                                                \
  X(not_paused) X(not_settled) X(payload_too_large) X(plan_invalid)                                          \
  X(plan_missing) X(rate_limited) X(rejected) X(replay_verification_human_required) X(secret_missing)                        \
  X(sequence_conflict) X(signals_limit) X(stale_attempt) X(store_locked) X(store_rolled_back)                \
  X(store_stopped)                                                                                           \
  X(tool_failed) X(tool_not_granted) X(tool_output_invalid) X(turns_limit) X(unauthorized) X(unavailable) X(unknown_outcome)                    \
  X(unsupported) X(unsupported_media_type) X(usage) X(wait_expired) X(wait_mismatch)
// clang-format on

enum class Code {
#define X(name) name,
  AE_ERROR_CODES(X)
#undef X
};

// The code as it is stored and shown, e.g. "sequence_conflict".
std::string_view code_name(Code code);
std::optional<Code> code_from_name(std::string_view name);

struct Error {
  Code code{};
  std::string message;        // one sentence for users: what is wrong, and where
  Boxed<Action> action = {};  // what the caller can do next

  // Adds what the caller was doing: "<context>: <message>".
  Error&& with_context(std::string_view context) &&;
  friend bool operator==(const Error&, const Error&) = default;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> fail(Code code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}
// With the message fmt::format(format, arguments…).
template <class First, class... Rest>
std::unexpected<Error> fail(Code code, fmt::format_string<First, Rest...> format, First&& first,
                            Rest&&... rest) {
  return fail(code, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}

// With an action.
inline std::unexpected<Error> fail(Code code, Action action, std::string message) {
  return std::unexpected(Error{code, std::move(message), std::move(action)});
}
template <class First, class... Rest>
std::unexpected<Error> fail(Code code, Action action, fmt::format_string<First, Rest...> format,
                            First&& first, Rest&&... rest) {
  return fail(code, std::move(action),
              fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}

// Reports a bug of ours: prints the location and the condition, then aborts. Enabled in release
// builds: a durable runtime restarts safely, but a wrong write is permanent.
[[noreturn]] void check_failed(const char* file, int line, const char* what,
                               std::string_view detail);

}  // namespace ae

#define AE_CHECK(cond, ...)                                                      \
  do {                                                                           \
    if (!(cond)) [[unlikely]]                                                    \
      ::ae::check_failed(__FILE__, __LINE__, #cond, ::std::string(__VA_ARGS__)); \
  } while (false)

#define AE_CONCAT_(a, b) a##b
#define AE_CONCAT(a, b) AE_CONCAT_(a, b)

// AE_TRY(Result<T>): returns the error, or continues.
// AE_ASSIGN(auto x, Result<T>): the same, keeping the value.
#define AE_TRY(expr)                                             \
  do {                                                           \
    if (auto ae_status_ = (expr); !ae_status_)                   \
      return ::std::unexpected(::std::move(ae_status_).error()); \
  } while (false)
#define AE_ASSIGN(decl, expr) AE_ASSIGN_(AE_CONCAT(ae_result_, __LINE__), decl, expr)
#define AE_ASSIGN_(tmp, decl, expr)                             \
  auto tmp = (expr);                                            \
  if (!tmp) return ::std::unexpected(::std::move(tmp).error()); \
  decl = ::std::move(*tmp)

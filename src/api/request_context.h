// RequestContext and LongPoll: a parsed request, and a request that waits. Only for the .cc files
// of this module.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api.h"
#include "api/problem.h"
#include "api/target.h"

namespace ae::api {

// A JSON array of strings.
inline Value texts(const std::vector<std::string>& from) {
  return Value::array(std::vector<Value>(from.begin(), from.end()));
}

constexpr Duration kRetryAfter = std::chrono::seconds(1);

struct Api::RequestContext {
  ApiRequest request;
  std::string id;    // the {id} of the path
  std::string step;  // the {step} of the path
  Query query;
  async::Done<ApiResponse> done;
  // The slot of its log read. A response that is computed in slices keeps it until it is sent.
  std::weak_ptr<void> slot;

  void answer(int status, Value body, std::string location = {}) {
    done({.status = status, .body = std::move(body), .location = std::move(location)});
  }
  void refuse(const Error& error) {
    const bool is_transient = error.code == Code::unavailable;
    done({.status = http_status(error.code),
          .body = problem(error),
          .location = {},
          .text = {},
          .retry_after = is_transient ? kRetryAfter : Duration(0)});
  }
  // Fails with unavailable: the responses in progress use all memory for them.
  Status check_response_room() const {
    if (!request.has_capacity || request.has_capacity()) return {};
    return fail(Code::unavailable,
                "this server is sending as many large answers as it takes; ask again, or for less");
  }
};

// One request that waits for a job to progress. `attempt` reads, then answers and sets `is_done`,
// or calls `keep_waiting`; when `last` is set it must answer.
struct Api::LongPoll {
  JobId job;
  Duration until{};   // by the steady clock
  bool last = false;  // answer now with the current state
  bool is_reading = false;
  bool has_new_events = false;  // during the read
  bool is_done = false;
  Duration not_before{};  // by the steady clock; an earlier read only if `last`
  std::optional<async::TimerId> timer;
  std::shared_ptr<const bool> disconnected;  // ApiRequest::disconnected
  ReadAttempt attempt;
  std::function<void()> keep_waiting;
};

// The error for a key whose role lacks the access.
Error missing_role_error(Role role, const std::vector<Role>& needed);
// The duration of ?wait; 0 = do not wait. Fails with input_invalid.
Result<Duration> wait_parameter(const Query& query);
// A job's row and summary (inspect/summary.h), as in lists. `live`: the state of a job that runs
// here, which is newer than the stored summary; else nullptr.
Value row_json(const store::JobRow& row, const engine::State* live);

// The cursor of a list: `ID@NUMBER`, or the id alone. The number stays valid after that job is
// deleted.
std::string cursor_of(const std::string& job, std::uint64_t number);
std::string cursor_of(const store::JobRow& row);
void apply_cursor(std::string_view cursor, store::Filter& filter);

// A field or word that a later version may support.
struct UnsupportedField {
  std::string_view name, why;
};

// The idempotency key, from the header or the body; "" = none.
// Fails with input_invalid.
Result<std::string> idempotency_key(const ApiRequest& request, const Value& body);

// The JSON object in a request body. Unknown names are rejected.
class Fields {
 public:
  // Fails with input_invalid, payload_too_large, unsupported.
  static Result<Fields> parse(const std::string& body,
                              std::initializer_list<std::string_view> known,
                              std::initializer_list<UnsupportedField> unsupported = {});
  const Value& operator[](std::string_view name) const { return object_[name]; }
  const Value* find(std::string_view name) const { return object_.find(name); }
  const Value& object() const { return object_; }
  // "" when it is absent or null. Fails with input_invalid: not a string, longer than 256 bytes, or
  // contains NUL, which not every store can keep.
  Result<std::string> text(std::string_view name) const;

 private:
  Value object_;
};

}  // namespace ae::api

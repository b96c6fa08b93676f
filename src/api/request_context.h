// RequestContext and LongPoll: a parsed request, and a request that waits. Only for the .cc files
// of this module.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api.h"
#include "api/problem.h"
#include "api/routes.h"

namespace ae::api {

// A JSON array of strings.
inline Value texts(const std::vector<std::string>& from) {
  return Value::array(std::vector<Value>(from.begin(), from.end()));
}

constexpr Duration kRetryAfter = std::chrono::seconds(1);

// The JSON object in a request body.
class Fields {
 public:
  // Fails with input_invalid, also for a field that is not known; payload_too_large, unsupported.
  static Result<Fields> parse(const std::string& body, std::span<const BodyField> known);
  const Value& operator[](std::string_view name) const { return object_[name]; }
  const Value* find(std::string_view name) const { return object_.find(name); }
  const Value& object() const { return object_; }
  // "" when it is absent or null. Fails with input_invalid: not a string, longer than 256 bytes, or
  // contains NUL, which not every store can keep.
  Result<std::string> text(std::string_view name) const;

 private:
  Value object_;
};

struct Api::RequestContext {
  ApiRequest request;
  const Route* route = nullptr;
  std::string id;    // the {id} of the path
  std::string step;  // the {step} of the path
  Query query;       // with parameters of the route only
  Fields fields;     // of the body, if the route has any; a handler takes them
  // What its view of a job shows besides the log; part of the ETag.
  std::string view_facts;
  async::Done<ApiResponse> done;

  // Checks the names of the query and the body, and parses the body. Fails with input_invalid,
  // payload_too_large, unsupported.
  Status parse();
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

// Makes the response of a read. On a reader thread: it owns what it uses.
struct Api::ResponseMaker {
  Render render;
  std::string view;  // as for etag_of; "" = no ETag
  Instant now;

  // `row`: of the job as it was read; nullptr = no ETag.
  ApiResponse make(const store::JobRow* row, Value body) const;
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
  Duration not_before{};   // by the steady clock; an earlier read only if `last`
  std::uint64_t seen = 0;  // the job's last event at the last read; 0 = not read yet
  std::optional<async::TimerId> timer;
  std::stop_token disconnected;  // ApiRequest::disconnected
  ReadAttempt attempt;
  std::function<void()> keep_waiting;
};

template <class T>
void Api::compute(const ContextPtr& ctx, const JobId& job, Work<T> work,
                  async::Done<Result<T>> then) {
  with_slot(ctx, [this, job, gone = ctx->request.disconnected, work = std::move(work),
                  then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
    if (!slot) return then(std::unexpected(std::move(slot).error()));
    runtime_.reader().read<T>(job, std::move(gone), std::move(work),
                              hold_slot(job, *std::move(slot), std::move(then)));
  });
}

template <class T>
void Api::compute_loaded(const ContextPtr& ctx, const JobId& job, std::uint64_t from_seq,
                         LoadedWork<T> work, async::Done<Result<T>> then) {
  with_slot(ctx, [this, job, from_seq, gone = ctx->request.disconnected, work = std::move(work),
                  then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
    if (!slot) return then(std::unexpected(std::move(slot).error()));
    runtime_.reader().load<T>(job, from_seq, std::move(gone), std::move(work),
                              hold_slot(job, *std::move(slot), std::move(then)));
  });
}

template <class T>
async::Done<Result<T>> Api::hold_slot(const JobId& job, ReadLimiter::Slot slot,
                                      async::Done<Result<T>> then) {
  return [alive = alive_.watch(), job, slot = std::move(slot),
          then = std::move(then)](Result<T> result) mutable {
    if (!alive) return;
    if (!result && result.error().code == Code::not_found) {
      return then(std::unexpected(missing_job_error(job.text)));
    }
    then(std::move(result));
  };
}

// The job id of a path. Fails with not_found.
Result<JobId> job_id_of(const std::string& id);
// The error for a key whose role lacks the access.
Error missing_role_error(Role role, const std::vector<Role>& needed);
// The duration of ?wait; 0 = do not wait. Fails with input_invalid.
Result<Duration> wait_parameter(const Query& query);
// A job's row and summary (inspect/summary.h), as in lists. `live`: the state of a job that runs
// here, which is newer than the stored summary; else nullptr. `registry`: for the agent's version.
Value row_json(const store::JobRow& row, const engine::State* live,
               const store::Registry& registry);

// The cursor of a list: `ID@NUMBER`, or the id alone. The number stays valid after that job is
// deleted.
std::string cursor_of(const std::string& job, std::uint64_t number);
std::string cursor_of(const store::JobRow& row);
void apply_cursor(std::string_view cursor, store::Filter& filter);

// The idempotency key, from the header or the body; "" = none.
// Fails with input_invalid.
Result<std::string> idempotency_key(const ApiRequest& request, const Value& body);

}  // namespace ae::api

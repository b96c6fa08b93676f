// RequestContext: a parsed request, and what handlers read from it. Only for the .cc files of this
// module.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_request.h"
#include "api/problem.h"
#include "api/routes.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "json/value.h"

namespace ae::api {

// A JSON array of strings.
inline Value texts(const std::vector<std::string>& from) {
  return Value::array(std::vector<Value>(from.begin(), from.end()));
}

constexpr Duration kRetryAfter = std::chrono::seconds(1);

// The JSON object in a request body.
class Fields {
 public:
  // A field under an older name gets the name that handlers read. Fails with input_invalid, also
  // for a field that is not known; payload_too_large, unsupported.
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

struct RequestContext {
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

// The job id of a path. Fails with not_found.
Result<JobId> job_id_of(const std::string& id);
// The error for a key whose role lacks the access.
Error missing_role_error(Role role, const std::vector<Role>& needed);
// The duration of ?wait; 0 = do not wait. Fails with input_invalid.
Result<Duration> wait_parameter(const Query& query);
// The idempotency key, from the header or the body; "" = none.
// Fails with input_invalid.
Result<std::string> idempotency_key(const ApiRequest& request, const Value& body);

}  // namespace ae::api

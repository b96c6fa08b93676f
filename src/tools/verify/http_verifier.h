// HttpVerifier: a verifier that sends one GET and evaluates the response. Shared by http_etag,
// http_last_modified, http_json, git_ref and github.
//
// Threads: the loop's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "log/field_names.h"
#include "tools/verify/compare.h"
#include "tools/verify/definition_fields.h"
#include "tools/verify/verify.h"

namespace ae::tools {

class HttpVerifier final : public Verifier {
 public:
  struct Options {
    std::function<Result<std::string>(const Value& change)> url;
    // Evaluates a 2xx response.
    std::function<Observation(const net::HttpResult& answer)> observe;
    std::string_view recorded = field::version;  // the member of `change` to compare
    SameFn same = same_text;
    Headers headers;
    net::HttpHeaders default_headers;  // sent unless `headers` sets them
    Duration timeout{};
    bool is_host_literal = true;          // literal in the agents file, not from recorded data
    std::vector<std::string> allow = {};  // hosts that recorded data may select (net/outbound.h)
    bool body = true;                     // false: only headers are read; the body may be cut off
  };
  HttpVerifier(VerifierDependencies deps, Options options)
      : deps_(std::move(deps)), options_(std::move(options)) {}
  void check(Value change, async::Done<CheckResult> done) override;

 private:
  VerifierDependencies deps_;
  Options options_;
};

}  // namespace ae::tools

// HttpVerifier: one GET whose answer is looked at. What http_etag, http_last_modified, http_json, git_ref and github share.
//
// Threads: the loop's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/verify/compare.h"
#include "tools/verify/definition_fields.h"
#include "tools/verify/verify.h"

namespace ae::tools {

class HttpVerifier final : public Verifier {
 public:
  struct Options {
    std::function<Result<std::string>(const Value& change)> url;
    // What a 2xx answer shows.
    std::function<Observation(const net::HttpResult& answer)> observe;
    std::string_view recorded = "version";  // the member that is compared
    SameFn same = same_text;
    Headers headers;
    net::HttpHeaders default_headers;  // headers that this kind of server wants
    Duration timeout{};
    bool is_host_literal = true;  // in the file, not chosen by what was recorded
    std::vector<std::string> allow =
        {};            // hosts that what was recorded may choose (net/outbound.h)
    bool body = true;  // false: only headers are looked at, a body may be cut off
  };
  HttpVerifier(VerifierDependencies deps, Options options)
      : deps_(std::move(deps)), options_(std::move(options)) {}
  void check(Value change, async::Done<CheckResult> done) override;

 private:
  VerifierDependencies deps_;
  Options options_;
};

}  // namespace ae::tools

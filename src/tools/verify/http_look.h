// HttpLook: one GET whose answer is looked at. What http_etag, http_last_modified, http_json, git_ref and github share.
//
// Threads: the loop's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/verify/compare.h"
#include "tools/verify/parts.h"
#include "tools/verify/verify.h"

namespace ae::tools {

class HttpLook final : public Verifier {
 public:
  struct How {
    std::function<Result<std::string>(const Value& change)> url;
    // What a 2xx answer shows.
    std::function<Seen(const net::HttpAnswer& answer)> see;
    std::string_view recorded = "version";  // the member that is compared
    SameFn same = same_text;
    Headers headers;
    net::HttpHeaders fixed;  // headers that this kind of server wants
    Duration timeout{};
    bool host_is_written = true;  // in the file, not chosen by what was recorded
    std::vector<std::string> allow =
        {};            // hosts that what was recorded may choose (net/outbound.h)
    bool body = true;  // false: only headers are looked at, a body may be cut off
  };
  HttpLook(VerifierNeeds needs, How how) : needs_(std::move(needs)), how_(std::move(how)) {}
  void look(Value change, async::Done<Sighting> done) override;

 private:
  VerifierNeeds needs_;
  How how_;
};

}  // namespace ae::tools

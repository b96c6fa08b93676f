// classify_response: the outcome of a call from its HTTP exchange (SPEC §6).
//
//   before the first request byte      failure, definite      connect tls not_sent request_invalid
//   complete 2xx                       success                `invalid` if the body breaks a rule
//   429, other 4xx, declared ones      failure, definite      http_<status>
//   408 409 425 5xx 3xx 101            unknown                http_<status>
//     a complete response settles the call, except 409 425 502 503 504 520 to 530
//     (base/http_status.h)
//   timeout after the send             timeout                timeout
//   no response, cut off, abandoned    unknown                reset abandoned
//   2xx that violates the protocol     unknown                not_json broken_json
//     (only with HttpRules::json_only)
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "log/outcome.h"
#include "net/http_client.h"
#include "tools/output.h"
#include "tools/secrets.h"
#include "tools/tool.h"

namespace ae::tools {

constexpr std::size_t kScrubWindow =
    512u << 10;  // more than a head and the longest encoding of a secret

struct HttpRules {
  std::vector<int> definite_failures;  // statuses that mean "no effect", in addition to the default
  bool full_response = false;          // the result is {status, headers, body}
  bool big_integers_as_strings = false;
  bool json_only = false;  // a 2xx response that is not JSON is not from the expected service
  std::size_t output_max = kOutputMax;
  std::string target;  // "GET example.com/orders/7", for messages; "": not shown
};

// REQUIRES: the response was read with response_max >= output_max, and with secrets also >=
// kScrubWindow; otherwise the recorded head could end inside a secret that the limit has cut. The
// outcome contains no value of `used`.
Outcome classify_response(const net::HttpResult& answer, const HttpRules& rules,
                          const std::vector<UsedSecret>& used);

// A streamed response. All members are borrowed.
struct ReceivedStream {
  const StreamReader& reader;  // has parsed it
  const Error* read_error;     // why parsing failed; nullptr: it did not
  std::string_view head;       // the beginning of its text, scrubbed
  Sha256& hash;                // of all its bytes
  std::size_t bytes;           // size of the whole stream
};

// The outcome of a call with a streamed response.
//
//   all of it arrived                    success          even if the connection breaks afterwards
//   not a valid response, or too large   success, `invalid`
//   the provider reported an error       unknown          reader.error_code()
//   closed cleanly, but incomplete       unknown          reader.error_code()
//   broken before its end                unknown          reset timeout abandoned
Outcome classify_stream_response(const net::HttpResult& answer, const ReceivedStream& stream,
                                 const HttpRules& rules, const std::vector<UsedSecret>& used);

}  // namespace ae::tools

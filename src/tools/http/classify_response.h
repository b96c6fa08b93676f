// judge: what an HTTP exchange means for the effect (SPEC §6). Pure; the table of the promise.
//
//   before the first request byte    failure, definite      connect tls not_sent request_invalid
//   complete 2xx                     success                a body that breaks a rule is `invalid`
//   429, other 4xx, declared ones    failure, definite      http_<status>
//   408 409 425 5xx 3xx 101          unknown                http_<status>
//     a complete one settles it, but 409 425 502 503 504 520 to 530 (base/http_status.h)
//   no time left after the send      timeout                timeout
//   no answer, cut off, abandoned    unknown                reset abandoned
//   a 2xx that is not what is spoken unknown                not_json broken_json    (HttpRules::json_only)
// Threads: a pure function.
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
    512u << 10;  // more than the longest secret in its longest shape, escaped, and a head

struct HttpRules {
  std::vector<int> definite_failures;  // statuses that mean "nothing happened", beyond the default
  bool full = false;                   // the result is {status, headers, body}
  bool big_integers_as_strings = false;
  bool json_only = false;  // whoever answers with anything else is somebody else
  std::size_t output_max = kOutputMax;
  std::string target;  // "GET example.com/orders/7", for messages; "" = they name none
};

// REQUIRES: the answer was read with answer_max >= output_max; with secrets also >= kScrubWindow, or the shown head
// could end inside one that the limit has cut. No value of `used` is in the outcome.
Outcome classify_response(const net::HttpResult& answer, const HttpRules& rules,
                          const std::vector<UsedSecret>& used);

// An answer that came as a stream. All of it is borrowed.
struct ReceivedStream {
  const StreamReader& reader;  // has read it
  const Error* read_error;     // how that failed; nullptr: it did not
  std::string_view head;       // the first words of it, without secrets
  Sha256& hash;                // of all its bytes
  std::size_t bytes;           // how many these are
};

// The same of such an answer.
//
//   all of it was said               success                also when the connection broke behind it
//   what is no answer, or too large  success, `invalid`
//   whoever answers gave up          unknown                what the reader calls it
//   it ends in order before its end  unknown                what the reader calls it
//   it breaks before its end         unknown                reset timeout abandoned
Outcome classify_stream_response(const net::HttpResult& answer, const ReceivedStream& stream,
                                 const HttpRules& rules, const std::vector<UsedSecret>& used);

}  // namespace ae::tools

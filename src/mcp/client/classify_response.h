// classify_response: the outcome of a tools/call (SPEC §6).
//
//   result                                      success            `invalid` if it breaks a rule
//   isError                                     failure, definite  tool_error
//   error -32601, -32602                        failure, definite  rpc_refused
//   HTTP status 4xx except 408 409 425          failure, definite  http_<status>
//   input_required, answerable by a user        input_required     continues with the answers
//   input_required, not answerable, no state    failure, definite  input_required
//   no byte sent                                failure, definite  connect tls not_sent
//   any other error or status                   unknown            rpc_error http_<status>;
//                                                                  settled as for HTTP responses
//   input_required, not answerable, with state  unknown            input_required
//   connection or program lost                  unknown            reset
//   question during an open call (legacy)       input_required     continues when it is answered
//                                                                  (server.h)
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "log/outcome.h"
#include "mcp/client/transport.h"
#include "tools/output.h"
#include "tools/secrets.h"

namespace ae::mcp::client {

constexpr std::size_t kErrorTextMax = 4096;  // bytes of a tool's error message

// The outcome contains no value of `used`.
Outcome classify_response(const Reply& reply, std::size_t output_max,
                          const std::vector<tools::UsedSecret>& used);

// The outcome of a try whose legacy server asks a question during the call. Its only request has
// the key `kOpenRequest`. nullopt: no user can answer the question.
inline constexpr std::string_view kOpenRequest = "question";
std::optional<Outcome> classify_open_question(const Value& params, std::string_view state,
                                              const std::vector<tools::UsedSecret>& used);

// Cuts at a character boundary and appends "…".
std::string truncate_text(std::string text, std::size_t most);

}  // namespace ae::mcp::client

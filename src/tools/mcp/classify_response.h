// judge: what became of a tools/call means for the effect (SPEC §6). Pure; the table of the promise.
//
//   a result                                  success       a result that breaks a rule is `invalid`
//   isError                                   failure, definite   tool_error: the tool says itself that it failed
//   error -32601, -32602                      failure, definite   rpc_refused
//   an HTTP status 4xx but 408 409 425        failure, definite   http_<status>
//   input_required, with questions to people  input_required      the call goes on when they have answered
//   input_required with others, and no state  failure, definite   input_required
//   no byte has left                          failure, definite   connect tls not_sent
//   any other error or status                 unknown       rpc_error http_<status>; settled, as an HTTP response is
//   input_required with others and a state    unknown       input_required
//   connection or program lost                unknown       reset
//   a question while the call is open (of the old era)  input_required   the call goes on when it is answered (server.h)
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "log/outcome.h"
#include "tools/mcp/transport.h"
#include "tools/output.h"
#include "tools/secrets.h"

namespace ae::tools::mcp {

constexpr std::size_t kErrorTextMax = 4096;  // bytes of what a tool says of its failure

// No value of `used` is in the outcome.
Outcome classify_response(const Reply& reply, std::size_t output_max,
                          const std::vector<UsedSecret>& used);

// A server of the old era asks this in the middle of a call: how its try ends then. Its one request has the key `kOpenRequest`.
// Nothing: no person can answer it.
inline constexpr std::string_view kOpenRequest = "question";
std::optional<Outcome> classify_open_question(const Value& params, std::string_view state,
                                              const std::vector<UsedSecret>& used);

// At a character's end; what is cut off is "…".
std::string truncate_text(std::string text, std::size_t most);
Outcome make_outcome(OutcomeKind kind, bool definite, bool retryable, std::string code,
                     std::string message);

}  // namespace ae::tools::mcp

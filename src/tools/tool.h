// Tool: performs calls against an external system. Implementations: native, HTTP, command and MCP
// tools.
//
// A tool performs one call under one permit and reports its outcome. It distinguishes *definite
// failure* (certainly no effect) from *unknown* (there may have been an effect) at every layer;
// SPEC §6 defines both for each transport. It never resends a request itself, never follows a
// redirect, and reports every call that exceeds its deadline. Threads: call perform and abandon on
// the loop's thread; the outcome is delivered there, exactly once.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "json/value.h"
#include "log/outcome.h"
#include "tools/permit.h"

namespace ae::tools {

using ae::Outcome;
using ae::OutcomeKind;

constexpr std::size_t kProgressMax = 4096;     // bytes of one progress report
constexpr std::size_t kStreamMax = 16u << 20;  // bytes of a streamed response

// Partial text of a streamed response, for display. `offset`: bytes of text that this try has
// delivered before.
struct TextDelta {
  std::size_t offset = 0;
  std::string text;  // UTF-8, without secrets
};

// Parses a streamed response (SSE) for the caller; transports that support streaming feed it the
// bytes.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  // Appends the text in these bytes to `text_out`, also the text before a failure. Fails with
  // tool_output_invalid or payload_too_large (not a valid response), or with unavailable (the
  // provider reported an error or broke the protocol). No bytes are parsed after a failure.
  virtual Status feed(std::string_view bytes, std::string& text_out) = 0;
  // The error code to record for an unavailable failure or an incomplete stream, for example
  // http_529.
  virtual std::string error_code() const = 0;
  // True once the response is complete; only then it is a result.
  virtual bool is_complete() const = 0;
  // REQUIRES: is_complete(). The equivalent body of a response that is not streamed.
  virtual Value body() const = 0;

  // Set by the transport before it delivers the outcome, for every response: scrubs a value that
  // was assembled from parts. Each part is clean, but together they may form a secret. Empty: there
  // are no secrets.
  std::function<Value(const Value&)> scrub_joined;
};

// The headers of a trace context (base/trace_context.h); "" = not sent.
struct TraceHeaders {
  std::string traceparent, tracestate;
};

struct Call {
  JobId job;
  std::string tool;      // the tool's name in the agents file
  std::string position;  // of a request of code (engine/code/code.h); "" = another call
  Value args;
  // Answers to the questions of an earlier try (schema/question.h): {"answers": {KEY: answer…},
  // "state"?}; null: there were no questions.
  Value inputs;
  IdempotencyKey key;
  ExternalKey external_key;  // header Idempotency-Key, environment AETHERIS_IDEMPOTENCY_KEY
  InvocationId invocation;
  std::uint32_t try_no = 1;
  // The latest earlier try that may have been sent; 0: none.
  std::uint32_t last_sent_try = 0;
  // How long a user has to answer a question that the tool asks during its call (docs/mcp.md).
  // Zero: questions are declined, because the call belongs to no step or the process exits when its
  // jobs are idle.
  Duration answer_timeout{};
  Duration timeout{};      // per try, from the send; then the outcome is timeout (or unknown)
  Duration send_within{};  // if not sent by then: withdrawn, `not_sent`
  // Trace context of this try for the downstream, not part of the request. Computed only by tools
  // that send it; empty: none.
  std::move_only_function<TraceHeaders() const> trace;
  TraceHeaders trace_headers() const { return trace ? trace() : TraceHeaders(); }
  // Durably records how to find what this call leaves behind if this process dies: {"pgid": …}. A
  // command tool waits for `noted` before its program starts. May be empty: no note is kept.
  std::move_only_function<void(Value note, async::Done<Status> noted)> note_in_flight;
  // Progress reports for display, at most kProgressMax bytes of JSON each. Called on the loop's
  // thread, before the outcome. May be empty.
  async::Done<Value> progress;
  // Parses a streamed response; null: a stream is read like any other text. Shared with the caller
  // and with the response that is still arriving.
  std::shared_ptr<StreamReader> reader;
  // Receives the text that `reader` parses, as it arrives: on the loop's thread, before the
  // outcome. May be empty.
  std::move_only_function<void(TextDelta)> on_text_delta;
  // The late result of a call whose outcome was timeout or unknown, if one arrives. At most once;
  // may be empty.
  async::Done<Outcome> on_late_outcome;
};

class Tool {
 public:
  virtual ~Tool() = default;
  virtual void perform(Permit permit, Call call, async::Done<Outcome> done) = 0;
  // Cancels this call. Not sent yet: withdrawn (`not_sent`). Otherwise it is cut off and its
  // outcome is unknown, or its result if that has arrived. A call that ended `input_required` and
  // is still open is dropped without another outcome. No effect if there is no such call.
  virtual void abandon(const InvocationId& invocation, std::uint32_t try_no) = 0;
  // The request that this call would send, for an approver to review. Built by the code that sends
  // it; secrets are shown by name. {"method", "url", "headers"?, "body"?}, {"argv", "stdin",
  // "env"?, "cwd"?} or {"server", "tool", "arguments"}; null: no preview available. Fails with the
  // error of a call whose request cannot be built.
  virtual Result<Value> preview(const Call& call) {
    static_cast<void>(call);
    return Value();
  }
  // Kills everything that an earlier process left running under this note. Blocking, at most 5 s.
  // Fails with unavailable if something still runs.
  virtual Status kill_leftovers(const Value& note) {
    static_cast<void>(note);
    return {};
  }
};

}  // namespace ae::tools

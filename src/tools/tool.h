// Tool: something that touches the world. Native, HTTP and command tools are its implementations.
//
// A tool performs one call under one permit and tells what it saw. It keeps *definite failure* (nothing happened,
// for sure) and *unknown* (it may have happened) apart from the lowest layer up: SPEC §6 says which is which for
// each transport. It never sends twice by itself, never follows a redirect, never outlives its deadline unseen.
// Threads: perform and abandon are called on the loop's thread; the answer comes there too, exactly once.
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

constexpr std::size_t kProgressMax = 4096;  // bytes of one report
constexpr std::size_t kStreamMax = 16u
                                   << 20;  // bytes of an answer that comes as a stream of events

// What an answer says while it is still coming, for people. `offset`: how many bytes of text this try had said before.
struct TextDelta {
  std::size_t offset = 0;
  std::string text;  // UTF-8, without secrets
};

// Reads an answer for whoever makes the call, if it comes as a stream of events; a transport that can hands it the bytes.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  // Adds the words that these bytes bring to `words`, also those before a failure. Fails with tool_output_invalid or
  // payload_too_large (it is no answer), or with unavailable: whoever answers gave up in the middle, or lost his way.
  // After that nothing more is read.
  virtual Status feed(std::string_view bytes, std::string& words) = 0;
  // Of such an end, and of a stream that is over and not whole: how it is called in a record, as http_529.
  virtual std::string error_code() const = 0;
  // Was all of it said? Only then is it an answer.
  virtual bool is_whole() const = 0;
  // REQUIRES: is_whole(). The body that the same answer has when it does not come as a stream.
  virtual Value body() const = 0;

  // Set by the transport before it gives the outcome, however the answer came: takes the secrets of the call out of what is
  // put together from parts of it. Each part is clean, and still they may join to a value. Empty: there are none.
  std::function<Value(const Value&)> clean;
};

struct Call {
  JobId job;
  std::string tool;  // its name in the agents file
  Value args;
  // What people have answered to what an earlier try of this call asked (schema/question.h): {"answers": {KEY: answer…},
  // "state"?}; null = it asked nothing.
  Value inputs;
  IdempotencyKey key;
  ExternalKey external_key;  // header Idempotency-Key, environment AETHERIS_IDEMPOTENCY_KEY
  InvocationId invocation;
  std::uint32_t try_no = 1;
  // The newest earlier try that may have been sent; 0 = none was.
  std::uint32_t sent_before = 0;
  // How long a person has to answer what the tool asks while its call is open (docs/mcp.md). Zero: nobody is asked, as the
  // call of no step, or of a process that ends when its jobs rest.
  Duration ask_expires{};
  Duration timeout{};      // per try, from the send; then the outcome is timeout (or unknown)
  Duration send_within{};  // not sent by then: withdraw it, `not_sent`
  // Trace context of this try, for those that it reaches: no part of what is asked. "" = none.
  std::string traceparent, tracestate;
  // Durably notes how to find what this call left behind, should this process die: {"pgid": …}. A command tool waits
  // for the answer before its program starts. May be empty (no note is kept).
  std::move_only_function<void(Value note, async::Done<Status> noted)> note_in_flight;
  // How far it is, for people: at most kProgressMax bytes of JSON. On the loop's thread, before the answer. May be empty.
  async::Done<Value> progress;
  // Reads the answer if it comes as a stream; null: a stream is a text like any other. Shared with what still arrives, and
  // with the caller.
  std::shared_ptr<StreamReader> reader;
  // Hears what `reader` reads, as it comes: on the loop's thread, before the answer. May be empty.
  std::move_only_function<void(TextDelta)> on_text_delta;
  // What the world says after the answer was timeout or unknown, if it says anything. At most once; may be empty.
  async::Done<Outcome> late;
};

class Tool {
 public:
  virtual ~Tool() = default;
  virtual void perform(Permit permit, Call call, async::Done<Outcome> done) = 0;
  // Stop waiting for this call: withdraw it if unsent (`not_sent`), else cut it off and answer unknown (or what it is). One
  // that was answered `input_required` and is still open is given up, and nothing more is said of it.
  // Does nothing when there is no such call.
  virtual void abandon(const InvocationId& invocation, std::uint32_t try_no) = 0;
  // What this call would send, for a person to read before it does: made by the code that sends it, each secret by its name
  // alone. {"method", "url", "headers"?, "body"?}, {"argv", "stdin", "env"?, "cwd"?} or {"server", "tool", "arguments"}; null:
  // nothing is known of it. Fails as a call would that cannot be made.
  virtual Result<Value> preview(const Call& call) {
    static_cast<void>(call);
    return Value();
  }
  // Makes sure that nothing which an earlier process left behind under this note still runs. Blocking, bounded (5 s).
  // Fails with unavailable when it still lives.
  virtual Status kill_leftovers(const Value& note) {
    static_cast<void>(note);
    return {};
  }
};

}  // namespace ae::tools

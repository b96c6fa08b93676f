// ModelTool: a model as a tool.
//
// A model call is an invocation like any other, so the ledger, unknown outcomes, retries, late
// results and proofs apply to it. This class translates the recorded request into the provider's,
// passes it to a transport, translates the response back, and validates it against the request's
// schema. It sends nothing itself. A streamed answer is recorded like one that was not streamed. An
// answer that breaks its schema is a result if its request has `repair`; any other unusable answer
// is recorded as invalid, with its `model` and `usage`, because it was paid for.
// Threads: as Tool.
#pragma once

#include <functional>
#include <memory>

#include "async/loop.h"
#include "base/error.h"
#include "json/value.h"
#include "llm/answer_assembler.h"
#include "llm/failure.h"
#include "tools/tool.h"

namespace ae::llm {

// A provider's API format: chat_completions.h or messages.h.
struct ProviderCodec {
  // Call arguments to the provider's request. Fails with input_invalid: nothing is sent.
  std::function<Result<Value>(const Value& recorded)> request;
  // The transport's result to the recorded answer. Fails with tool_output_invalid.
  std::function<Result<Value>(const Value& recorded, const Value& body)> answer;
  // The format of its streams. A server may ignore the request to stream.
  WireFormat wire = WireFormat::chat_completions;
  // Members added to the request to enable streaming; null: no streaming.
  Value streaming = {};
  Endpoint endpoint = {};  // for error messages
  // Members of a request that names no model, as far as it lacks them.
  Value defaults = {};
};

class ModelTool final : public tools::Tool {
 public:
  // Owns the transport; borrows the loop.
  ModelTool(async::Loop& loop, std::unique_ptr<tools::Tool> transport, ProviderCodec codec);

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;

 private:
  async::Loop& loop_;
  std::unique_ptr<tools::Tool> transport_;
  std::shared_ptr<const ProviderCodec>
      codec_;  // shared with calls in flight, which may outlive the tool
};

}  // namespace ae::llm

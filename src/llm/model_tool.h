// ModelTool: a call of a model, as a tool makes calls.
//
// The ledger, doubt, retries, late results and proofs hold for a model call because it is an invocation like any
// other: this translates the recorded request into what the provider reads, hands it to a transport, translates
// the answer back, and holds it to the request's schema. It sends nothing itself. An answer that comes as a stream is
// recorded as the one that comes whole. An answer that breaks its schema is one all the same where its
// request says so (`repair`); any other that cannot be used has cost what it cost: the record that stands for it
// keeps `model` and `usage`. Threads: as Tool says.
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

// A provider's language: chat_completions.h and messages.h are two.
struct ProviderCodec {
  // What is sent, made of a call's arguments. Fails with input_invalid: nothing is sent.
  std::function<Result<Value>(const Value& recorded)> request;
  // What is recorded, made of the transport's result. Fails with tool_output_invalid.
  std::function<Result<Value>(const Value& recorded, const Value& body)> answer;
  // The form of its streams. A server that was asked for one may still answer whole.
  WireFormat wire = WireFormat::chat_completions;
  // An object, added to what is sent to be answered piece by piece; null: answers are asked for whole.
  Value streaming = {};
  Endpoint endpoint = {};  // for what is said of failures
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
      codec_;  // shared with calls in flight, which may be answered when the tool is gone
};

}  // namespace ae::llm

// From a recorded request to the transport, and from its outcome to a recorded answer.
#include "llm/model_tool.h"

#include <utility>

#include "core/json.h"
#include "tools/output.h"

namespace ae::llm {
namespace {

// Some servers say their JSON is text.
Value body_of(Value result) {
  if (!result.is_string()) return result;
  auto parsed = parse_json(result.as_string());
  return parsed ? *std::move(parsed) : std::move(result);
}

// Only a success has an answer; how a call failed is for the transport to say.
Outcome translated(Outcome outcome, const Dialect& dialect) {
  if (outcome.kind != OutcomeKind::success || outcome.invalid) return outcome;
  const Value body = body_of(std::move(outcome.result));
  if (auto answer = dialect.answer(body)) {
    outcome.result = *std::move(answer);
    return outcome;
  } else {
    const std::string text = body.is_string() ? body.as_string() : canonical(body);
    outcome.result = Value();
    outcome.invalid = tools::invalid_output(answer.error().message, text, text.size());
  }
  return outcome;
}

}  // namespace

ModelTool::ModelTool(async::Loop& loop, std::unique_ptr<tools::Tool> transport, Dialect dialect)
    : loop_(loop),
      transport_(std::move(transport)),
      dialect_(std::make_shared<const Dialect>(std::move(dialect))) {}

void ModelTool::perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) {
  auto request = dialect_->request(call.args);
  if (!request) {
    Outcome outcome;
    outcome.kind = OutcomeKind::failure;
    outcome.definite = true;
    outcome.error_code = "request_invalid";
    outcome.error_message = std::move(request).error().message;
    loop_.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
      done(std::move(outcome));
    });
    return;
  }
  call.args = *std::move(request);
  transport_->perform(std::move(permit), std::move(call),
                      [dialect = dialect_, done = std::move(done)](Outcome outcome) mutable {
                        done(translated(std::move(outcome), *dialect));
                      });
}

void ModelTool::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  transport_->abandon(invocation, try_no);
}

}  // namespace ae::llm

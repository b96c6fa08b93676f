// ModelTool: from a recorded request to the transport, and from its outcome to a recorded answer.
#include "llm/model_tool.h"

#include <utility>

#include "json/json.h"
#include "llm/conversation.h"
#include "log/field_names.h"
#include "tools/output.h"

namespace ae::llm {
namespace {

// Some servers send JSON with a text content type.
Value parse_body(Value result) {
  if (!result.is_string()) return result;
  auto parsed = parse_json(result.as_string());
  return parsed ? *std::move(parsed) : std::move(result);
}

// The record of an invalid answer, with its `model` and `usage`.
Value invalid_output_record(const Error& error, std::string_view text, const Value& answer) {
  Value record = tools::invalid_output(error.message, text, text.size());
  for (const std::string_view name : {"model", field::usage}) {
    if (const Value* known = answer.find(name)) record = record.with(name, *known);
  }
  return record;
}

// Only a success has an answer; the transport classifies failures.
Outcome to_recorded_outcome(Outcome outcome, const Value& request, const ProviderCodec& codec,
                            const tools::StreamReader& reader) {
  if (outcome.kind != OutcomeKind::success) add_hint(codec.endpoint, outcome);
  if (outcome.kind != OutcomeKind::success || outcome.invalid) return outcome;
  const auto scrub_joined = [&](Value value) {
    return reader.scrub_joined ? reader.scrub_joined(value) : value;
  };
  const Value body = scrub_joined(parse_body(std::exchange(outcome.result, Value())));
  auto answer = codec.answer(request, body);
  if (!answer) {
    const std::string text = body.is_string() ? body.as_string() : canonical(body);
    outcome.invalid = invalid_output_record(answer.error(), text, Value());
    return outcome;
  }
  // Cleaned again: blocks were joined into one text, and texts were parsed into arguments.
  answer = scrub_joined(*std::move(answer));
  if (auto whole = with_parsed_json(request["schema"], *answer)) {
    outcome.result = *std::move(whole);
  } else if (request["repair"] == Value(true)) {
    outcome.result = answer->with("invalid", whole.error().message);
  } else {
    outcome.invalid = invalid_output_record(whole.error(), answer->text("text"), *answer);
  }
  return outcome;
}

// The HTTP status code that corresponds to an error in mid-stream.
std::string code_of(std::string_view error_type) {
  constexpr std::pair<std::string_view, std::string_view> kCodes[] = {
      {"overloaded_error", "http_529"},
      {"rate_limit_error", "http_429"},
      {"rate_limit_exceeded", "http_429"},
      {"timeout_error", "http_504"},
      {"requests", "http_429"},
      {"tokens", "http_429"},
  };
  for (const auto& [wire_code, code_name] : kCodes) {
    if (error_type == wire_code) return std::string(code_name);
  }
  return "http_500";
}

class AnswerReader final : public tools::StreamReader {
 public:
  explicit AnswerReader(WireFormat wire) : stream_(wire) {}

  Status feed(std::string_view bytes, std::string& text_out) override {
    Status fed = stream_.feed(bytes, text_out);
    if (fed || fed.error().code == Code::payload_too_large) return fed;
    provider_failed_ = fed.error().code == Code::tool_failed;
    fed.error().code = Code::unavailable;
    return fed;
  }
  // Any other error is an unusable response, which a gateway reports as 502.
  std::string error_code() const override {
    return provider_failed_ ? code_of(stream_.error_type()) : "http_502";
  }
  bool is_complete() const override { return stream_.is_complete(); }
  Value body() const override { return stream_.body(); }

 private:
  AnswerAssembler stream_;
  bool provider_failed_ = false;
};

}  // namespace

ModelTool::ModelTool(async::Loop& loop, std::unique_ptr<tools::Tool> transport, ProviderCodec codec)
    : loop_(loop),
      transport_(std::move(transport)),
      codec_(std::make_shared<const ProviderCodec>(std::move(codec))) {}

void ModelTool::perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) {
  if (call.args.find("model") == nullptr && codec_->defaults.is_object()) {
    for (const auto& [key, value] : codec_->defaults.members()) {
      if (call.args.find(key) == nullptr) call.args = call.args.with(key, value);
    }
  }
  auto request = codec_->request(call.args);
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
  if (codec_->streaming.is_object()) {
    for (const auto& [key, value] : codec_->streaming.members()) {
      request = request->with(key, value);
    }
  }
  const auto reader = std::make_shared<AnswerReader>(codec_->wire);
  call.reader = reader;
  Value recorded = std::exchange(call.args, *std::move(request));
  transport_->perform(std::move(permit), std::move(call),
                      [codec = codec_, recorded = std::move(recorded), reader,
                       done = std::move(done)](Outcome outcome) mutable {
                        done(to_recorded_outcome(std::move(outcome), recorded, *codec, *reader));
                      });
}

void ModelTool::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  transport_->abandon(invocation, try_no);
}

}  // namespace ae::llm

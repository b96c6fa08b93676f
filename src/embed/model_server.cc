#include "embed/model_server.h"
#include "log/field_names.h"

#include <fmt/core.h>

#include <charconv>
#include <exception>

namespace aetheris::testing {
namespace {

constexpr int kRefused = 400;  // is not tried again, so that its job shows it

std::unexpected<Error> invalid(std::string message) {
  return std::unexpected(Error{"input_invalid", std::move(message)});
}

// aetheris:JOB:STEP:HASH
std::string job_of(std::string_view key) {
  constexpr std::string_view kPrefix = "aetheris:";
  if (!key.starts_with(kPrefix)) return {};
  key.remove_prefix(kPrefix.size());
  for (int i = 0; i < 2; ++i) key = key.substr(0, key.rfind(':'));
  return std::string(key);
}

std::string header_of(const ae::net::HttpRequest& request, std::string_view name) {
  return std::string(request.header(name).value_or(""));
}

ModelCall call_of(const ae::net::HttpRequest& request, const Value& body) {
  ModelCall call{.body = body,
                 .messages = body["messages"],
                 .schema = body["response_format"]["json_schema"]["schema"],
                 .key = header_of(request, "idempotency-key")};
  call.job = job_of(call.key);
  const std::string try_no = header_of(request, "x-aetheris-try");
  std::from_chars(try_no.data(), try_no.data() + try_no.size(), call.try_no);
  return call;
}

// As Chat Completions has it.
Value message_of(const Value& answer) {
  Value message = Value::object({{"role", "assistant"}});
  if (answer.is_string()) return message.with("content", answer);
  Value content = answer["text"];
  if (content.is_null() && answer.members().contains("json")) content = answer["json"].to_json();
  message = message.with("content", content);
  if (!answer["refusal"].is_null()) message = message.with("refusal", answer["refusal"]);
  Value::Array calls;
  for (const Value& call : answer["tool_calls"].items()) {
    const Value& arguments = call[ae::field::arguments];
    calls.push_back(Value::object(
        {{"id",
          call["id"].is_null() ? Value(fmt::format("call_{}", calls.size() + 1)) : call["id"]},
         {"type", "function"},
         {"function", Value::object({{"name", call["name"]},
                                     {ae::field::arguments,
                                      arguments.is_null() ? "{}" : arguments.to_json()}})}}));
  }
  return calls.empty() ? message : message.with("tool_calls", std::move(calls));
}

// Tokens: those of the test, or one for each four characters.
Value usage_of(const Value& answer, const ModelCall& call, const Value& message) {
  const auto tokens = [&](const char* name, const Value& text) {
    const Value& stated = answer[ae::field::usage][name];
    return stated.is_integer() ? stated.as_int()
                               : static_cast<std::int64_t>(text.to_json().size() / 4 + 1);
  };
  const std::int64_t prompt = tokens("prompt_tokens", call.messages);
  const std::int64_t completion = tokens("completion_tokens", message);
  return Value::object({{"completion_tokens", completion},
                        {"prompt_tokens", prompt},
                        {"total_tokens", prompt + completion}});
}

std::string event_text(const Value& event) { return fmt::format("data: {}\n\n", event.to_json()); }

// One piece with the whole message, the end, and the usage.
ae::net::HttpResponse stream_of(const Value& head, Value message, const Value& reason,
                                const Value& usage) {
  Value::Array calls = message["tool_calls"].items();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i] = calls[i].with("index", static_cast<std::int64_t>(i));
  }
  if (!calls.empty()) message = message.with("tool_calls", std::move(calls));
  const auto chunk = [&](Value delta, const Value& end) {
    return head.with("object", "chat.completion.chunk")
        .with("choices",
              Value::array({Value::object(
                  {{"delta", std::move(delta)}, {"finish_reason", end}, {"index", 0}})}));
  };
  return {.content_type = "text/event-stream",
          .headers = {},
          .body = event_text(chunk(message, {})) + event_text(chunk(Value::Object(), reason)) +
                  event_text(head.with("object", "chat.completion.chunk")
                                 .with("choices", Value::Array())
                                 .with(ae::field::usage, usage)) +
                  "data: [DONE]\n\n"};
}

ae::net::HttpResponse response_of(const Value& answer, const ModelCall& call,
                                  const Value& message) {
  constexpr std::int64_t kCreated = 1'767'225'600;  // the same in every answer
  Value reason = answer["finish_reason"];
  if (reason.is_null()) reason = message["tool_calls"].is_null() ? "stop" : "tool_calls";
  const Value usage = usage_of(answer, call, message);
  const Value head = Value::object(
      {{"created", kCreated}, {"id", "chatcmpl-test"}, {"model", call.body["model"]}});
  if (call.body["stream"].as_bool()) return stream_of(head, message, reason, usage);
  const Value choice =
      Value::object({{"finish_reason", reason}, {"index", 0}, {"message", message}});
  return {.headers = {},
          .body = head.with("object", "chat.completion")
                      .with("choices", Value::array({choice}))
                      .with(ae::field::usage, usage)
                      .to_json()};
}

ae::net::HttpResponse failure_of(const Value& answer) {
  const int status = static_cast<int>(answer["status"].as_int());
  ae::net::HttpResponse response{.status = status, .headers = {}};
  if (!answer["retry_after"].is_null()) {
    response.headers.emplace_back("retry-after", answer["retry_after"].to_json());
  }
  const char* const type = status >= 500 ? "server_error" : "invalid_request_error";
  response.body = Value::object({{ae::field::error,
                                  Value::object({{"message", answer["message"]}, {"type", type}})}})
                      .to_json();
  return response;
}

}  // namespace

ModelServer::~ModelServer() {
  if (!thread_.joinable()) return;
  loop_.stop();
  thread_.join();
  server_.reset();
}

Status ModelServer::begin() {
  server_ = std::make_unique<ae::net::HttpServer>(
      loop_, [this](const ae::net::HttpRequest& request, ae::net::Responder responder) {
        answer(request, std::move(responder));
      });
  const auto port = server_->listen_tcp("127.0.0.1", 0);
  if (!port) return std::unexpected(Error{"unavailable", port.error().message});
  port_ = *port;
  thread_ = std::thread([this] { loop_.run(); });
  return {};
}

Value ModelServer::definitions() const {
  Value::Object models;
  for (const auto& [name, model] : models_) {
    models.emplace(name, Value::object({{"base_url", fmt::format("http://127.0.0.1:{}/v1", port_)},
                                        {"model", name},
                                        {"provider", "openai"}}));
  }
  return models;
}

void ModelServer::answer(const ae::net::HttpRequest& request, ae::net::Responder responder) {
  const auto body = Value::from_json(request.body);
  if (!body || request.path != std::vector<std::string>{"v1", "chat", "completions"}) {
    return std::move(responder).answer(ae::net::problem(
        404, "not_found", "a model of a test answers requests of Chat Completions"));
  }
  const std::string& name = body->text("model");
  const ModelCall call = call_of(request, *body);
  const std::size_t index = callbacks_.on_call({.tool = "model:" + name,
                                                .position = {},
                                                .job = call.job,
                                                .arguments = *body,
                                                .effect = Effect::read,
                                                .key = call.key,
                                                .try_no = call.try_no});
  const Result<Value> stated = answer_of(name, call);
  const Value answer =
      stated ? *stated : Value::object({{"message", stated.error().message}, {"status", kRefused}});
  if (!answer["status"].is_null()) {
    callbacks_.on_end(
        index, std::unexpected(Failure{.code = fmt::format("http_{}", answer["status"].as_int()),
                                       .message = answer.text("message")}));
    return std::move(responder).answer(failure_of(answer));
  }
  const Value message = message_of(answer);
  callbacks_.on_end(index, message);
  std::move(responder).answer(response_of(answer, call, message));
}

Result<Value> ModelServer::answer_of(const std::string& name, const ModelCall& call) {
  const auto model = models_.find(name);
  if (model == models_.end()) return invalid(fmt::format("the test has no model \"{}\"", name));
  if (const auto* answers = std::get_if<std::vector<Value>>(&model->second)) {
    return next_of(name, *answers, call);
  }
  try {
    Value answer = std::get<ModelFunction>(model->second)(call);
    if (answer.is_string() || answer.is_object()) return answer;
    return invalid(
        fmt::format("the model \"{}\" of the test: an answer is a text or an object", name));
  } catch (const std::exception& thrown) {
    return invalid(fmt::format("the model \"{}\" of the test: {}", name, thrown.what()));
  }
}

Result<Value> ModelServer::next_of(const std::string& name, const std::vector<Value>& answers,
                                   const ModelCall& call) {
  JobAnswers& known = lists_[{name, call.job}];
  if (const auto found = known.by_key.find(call.key); found != known.by_key.end()) {
    return found->second;
  }
  if (known.used == answers.size()) {
    return invalid(fmt::format(
        "the model \"{}\" of the test has {} answers for a job, and {} makes another call", name,
        answers.size(), call.job));
  }
  const Value& answer = answers[known.used++];
  if (!answer.is_string() && !answer.is_object()) {
    return invalid(
        fmt::format("the model \"{}\" of the test: an answer is a text or an object", name));
  }
  if (answer["status"].is_null()) known.by_key.emplace(call.key, answer);
  return answer;
}

}  // namespace aetheris::testing

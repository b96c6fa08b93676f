// The providers that there are.
#include "llm/provider.h"

#include "llm/chat_completions.h"
#include "llm/messages.h"

namespace ae::llm {

bool is_provider(std::string_view name) { return name == "openai" || name == "anthropic"; }

namespace {

Streaming chat_streaming() {
  return {.wire = Wire::chat_completions,
          .asked = Value::object(
              {{"stream", true}, {"stream_options", Value::object({{"include_usage", true}})}})};
}

Streaming messages_streaming() {
  return {.wire = Wire::messages, .asked = Value::object({{"stream", true}})};
}

}  // namespace

std::optional<Provider> provider_of(std::string_view name, const Value& settings) {
  std::optional<Provider> provider;
  if (name == "openai") {
    provider = Provider{
        .transport = chat_transport(settings),
        .dialect = {
            .request = [settings](const Value& request) { return chat_request(request, settings); },
            .answer = chat_answer,
            .streaming = chat_streaming()}};
  } else if (name == "anthropic") {
    provider = Provider{.transport = messages_transport(settings),
                        .dialect = {.request = messages_request,
                                    .answer = messages_answer,
                                    .streaming = messages_streaming()}};
  }
  if (provider && settings["stream"] == Value(false)) provider->dialect.streaming.reset();
  return provider;
}

}  // namespace ae::llm

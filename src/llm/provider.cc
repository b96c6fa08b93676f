// The list of providers.
#include "llm/provider.h"

#include "llm/chat_completions.h"
#include "llm/messages.h"

namespace ae::llm {

bool is_provider(std::string_view name) { return name == "openai" || name == "anthropic"; }

std::optional<Provider> provider_of(std::string_view name, const Value& settings) {
  std::optional<Provider> provider;
  if (name == "openai") {
    provider = Provider{
        .transport = chat_transport(settings),
        .codec = {
            .request = [settings](const Value& request) { return chat_request(request, settings); },
            .answer = chat_answer,
            .wire = WireFormat::chat_completions,
            .streaming = Value::object(
                {{"stream", true}, {"stream_options", Value::object({{"include_usage", true}})}})}};
  } else if (name == "anthropic") {
    provider = Provider{.transport = messages_transport(settings),
                        .codec = {.request = messages_request,
                                  .answer = messages_answer,
                                  .wire = WireFormat::messages,
                                  .streaming = Value::object({{"stream", true}})}};
  }
  if (!provider) return provider;
  provider->codec.endpoint = endpoint_of(settings);
  provider->codec.defaults = settings["defaults"];
  if (settings["stream"] == Value(false)) provider->codec.streaming = Value();
  return provider;
}

}  // namespace ae::llm

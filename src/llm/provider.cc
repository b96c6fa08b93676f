// The providers that there are.
#include "llm/provider.h"

#include "llm/chat_completions.h"
#include "llm/messages.h"

namespace ae::llm {

bool is_provider(std::string_view name) { return name == "openai" || name == "anthropic"; }

std::optional<Provider> provider_of(std::string_view name, const Value& settings) {
  if (name == "openai") {
    return Provider{
        .transport = chat_transport(settings),
        .dialect = {
            .request = [settings](const Value& request) { return chat_request(request, settings); },
            .answer = chat_answer}};
  }
  if (name == "anthropic") {
    return Provider{.transport = messages_transport(settings),
                    .dialect = {.request = messages_request, .answer = messages_answer}};
  }
  return std::nullopt;
}

}  // namespace ae::llm

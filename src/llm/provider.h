// Providers: the codec and the transport of a model of an agents file.
//
// `openai` is Chat Completions, which most servers support; `anthropic` is Messages. Another
// provider needs a codec like chat_completions.h and an entry in provider.cc.
// Threads: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "json/value.h"
#include "llm/model_tool.h"

namespace ae::llm {

struct Provider {
  Value transport;  // a template for tools/http
  ProviderCodec codec;
};

// nullopt: unknown provider. Answers are streamed unless the settings contain {"stream": false}.
std::optional<Provider> provider_of(std::string_view name, const Value& settings);
bool is_provider(std::string_view name);

}  // namespace ae::llm

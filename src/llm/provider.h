// Providers: which language a model of an agents file is spoken to in, and how it is reached.
//
// `openai` is Chat Completions, which most servers speak; `anthropic` is Messages. A third one is a sibling of
// chat_completions.h and a line here. Threads: pure functions.
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

// Nothing when there is no such provider. Answers are streamed unless the settings say {"stream": false}.
std::optional<Provider> provider_of(std::string_view name, const Value& settings);
bool is_provider(std::string_view name);

}  // namespace ae::llm

// Hints of model failures, by error code.
#include "llm/failure.h"

#include <fmt/core.h>

#include <string_view>

namespace ae::llm {
namespace {

constexpr std::string_view kSecret = "secret:";

// What to check; "": nothing to add.
std::string hint_for(std::string_view code, const Endpoint& at) {
  if (code == "connect" || code == "tls") return fmt::format("check `base_url` ({})", at.host);
  if (code == "http_404") return fmt::format("check `base_url` ({}) and `model`", at.host);
  if (code.starts_with("http_3"))
    return fmt::format("check `base_url` ({}): it redirects", at.host);
  if (code != "http_401" && code != "http_403") return "";
  if (at.key.empty()) return "the model has no `api_key`";
  return fmt::format("its key is {}{}", kSecret, at.key);
}

}  // namespace

Endpoint endpoint_of(const Value& settings) {
  Endpoint at;
  std::string_view url = settings.text("base_url");
  if (const std::size_t scheme = url.find("://"); scheme != url.npos) url.remove_prefix(scheme + 3);
  at.host = url.substr(0, url.find('/'));
  std::string_view key = settings.text("api_key");
  if (key.starts_with(kSecret)) at.key = key.substr(kSecret.size());
  return at;
}

void add_hint(const Endpoint& endpoint, Outcome& outcome) {
  std::string& message = outcome.error_message;
  if (outcome.error_code == "not_json") {
    message = fmt::format("the server at {} is not a model provider: {}: check `base_url`",
                          endpoint.host, message);
    outcome.error_code = "http_502";
    return;
  }
  if (outcome.error_code == "broken_json") outcome.error_code = "http_502";
  const std::string hint = hint_for(outcome.error_code, endpoint);
  if (hint.empty()) return;
  while (message.ends_with('.')) message.pop_back();
  message = fmt::format("{}; {}", message, hint);
}

}  // namespace ae::llm

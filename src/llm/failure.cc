// Hints of model failures, by error code.
#include "llm/failure.h"

#include <string_view>
#include <utility>

namespace ae::llm {
namespace {

constexpr std::string_view kSecret = "secret:";

// What to check; "": nothing to add.
std::string hint_for(std::string_view code, const Endpoint& at) {
  const std::string host = "`base_url` (" + at.host + ")";
  if (code == "connect" || code == "tls") return "check " + host;
  if (code == "http_404") return "check " + host + " and `model`";
  if (code.starts_with("http_3")) return "check " + host + ": it redirects";
  if (code != "http_401" && code != "http_403") return "";
  if (at.key.empty()) return "the model has no `api_key`";
  std::string key = "its key is ";
  key += kSecret;
  key += at.key;
  return key;
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
    std::string not_a_provider = "the server at " + endpoint.host + " is not a model provider: ";
    not_a_provider += message;
    not_a_provider += ": check `base_url`";
    message = std::move(not_a_provider);
    outcome.error_code = "http_502";
    return;
  }
  if (outcome.error_code == "broken_json") outcome.error_code = "http_502";
  const std::string hint = hint_for(outcome.error_code, endpoint);
  if (hint.empty()) return;
  while (message.ends_with('.')) message.pop_back();
  message += "; ";
  message += hint;
}

}  // namespace ae::llm

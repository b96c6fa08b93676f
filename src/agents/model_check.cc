// Models of an agents file: who answers, how they are reached, and the policy of their calls.
#include <algorithm>
#include <utility>
#include <vector>

#include "agents/check.h"
#include "agents/tool_text.h"
#include "core/hash.h"
#include "core/json.h"

namespace ae::agents {
namespace {

constexpr Duration kLeast = std::chrono::milliseconds(1);
constexpr Duration kTimeout = std::chrono::minutes(2);  // a model thinks longer than a tool works
constexpr std::size_t kModelNameMax = 256;

class ModelCheck {
 public:
  ModelCheck(Check& check, std::string_view name, const Spot& spot)
      : check_(check), text_(check), spot_(spot) {
    checked_.tool.name = model_tool_name(name);
    checked_.tool.policy.name = checked_.tool.name;
  }

  CheckedModel run() {
    const std::size_t before = check_.count();
    if (check_.mapping(spot_,
                       {"provider", "model", "base_url", "api_key", "temperature", "max_tokens",
                        "max_tokens_name", "timeout", "grace", "retry", "description"},
                       {{"fallback", "going on with another model comes later"},
                        {"stream", "answers are recorded whole; streaming comes later"},
                        {"price", "prices come later; tokens are counted"}})) {
      if (const auto description = spot_.find("description")) check_.text(*description);
      provider();
      name();
      transport();
      settings();
      policy();
    }
    checked_.good = check_.count() == before;
    if (checked_.good) finish();
    return std::move(checked_);
  }

 private:
  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  void provider() {
    const auto spot = check_.required(spot_, "provider", "openai");
    const auto text = spot ? check_.text(*spot) : std::nullopt;
    if (!text || *text == "openai") return;
    Nearest nearest(*text);
    nearest.look_at("openai");
    check_.fault(*spot,
                 "this version speaks `openai`, Chat Completions, which other servers speak too",
                 nearest.take(), Code::unsupported);
  }

  void name() {
    const auto spot = check_.required(spot_, "model", "the model's name at its provider");
    if (!spot) return;
    auto text = text_.literal(*spot);
    if (!text) return;
    if (text->empty() || text->size() > kModelNameMax || has_expression(*text)) {
      return check_.fault(*spot, "the name of a model has 1 to 256 bytes, and no ${");
    }
    checked_.model = *std::move(text);
  }

  void transport() {
    if (const auto spot = check_.required(spot_, "base_url", "such as https://api.openai.com/v1")) {
      base_url(*spot);
    }
    const auto key = spot_.find("api_key");
    const auto text = key ? check_.text(*key) : std::nullopt;
    if (!text) return;
    if (!names_secret_only(*text)) {
      return check_.fault(*key, "is written secret:NAME: a key in this file is no secret");
    }
    put("api_key", *text);
  }

  void base_url(const Spot& spot) {
    auto text = text_.resolved(spot, Secrets::refused);
    if (!text) return;
    const std::size_t before = check_.count();
    text_.url(spot, *text);
    if (check_.count() != before) return;
    const auto parts = Template::parts(*text);
    if (!parts || parts->size() > 1) {
      check_.fault(spot, "holds no expression but ${ env.NAME }", {}, Code::unsupported);
    } else if (text->find('?') != text->npos) {
      check_.fault(spot, "has no query: /chat/completions is put behind it");
    }
    put("base_url", *std::move(text));
  }

  void settings() {
    if (const auto spot = spot_.find("temperature")) {
      if (auto number = check_temperature(check_, *spot)) checked_.temperature = number;
    }
    if (const auto spot = spot_.find("max_tokens")) {
      if (auto number = check_max_tokens(check_, *spot)) checked_.max_tokens = number;
    }
    if (const auto spot = spot_.find("max_tokens_name")) {
      const auto word = check_.word(*spot, {"max_completion_tokens", "max_tokens"});
      if (word == 1) put("max_tokens_name", "max_tokens");
    }
  }

  void policy() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    policy.effect =
        engine::EffectClass::read;  // a call that is lost and sent again changes the bill
    policy.on_in_doubt = engine::OnInDoubt::resend;
    policy.timeout = kTimeout;
    if (const auto timeout = spot_.find("timeout")) {
      policy.timeout = check_.duration(*timeout, kLeast).value_or(policy.timeout);
    }
    if (const auto grace = spot_.find("grace")) {
      policy.grace = check_.duration(*grace, Duration(0)).value_or(policy.grace);
    }
    if (const auto retry = spot_.find("retry")) {
      check_retry(check_, *retry, policy.retry, [](std::string_view) { return true; });
    }
  }

  void finish() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    checked_.tool.kind = policy.provider = "openai";
    checked_.tool.definition = Value::object(std::move(definition_));
    const Value without_version = Value::object({{"effect", "read"},
                                                 {"on_in_doubt", "resend"},
                                                 {"timeout", to_text(policy.timeout)},
                                                 {"grace", to_text(policy.grace)},
                                                 {"dedupe_window", to_text(*policy.dedupe_window)},
                                                 {"retry", retry_value(policy.retry)},
                                                 {"provider", policy.provider}});
    const Value whole = Value::object({{"kind", checked_.tool.kind},
                                       {"definition", checked_.tool.definition},
                                       {"policy", without_version}});
    policy.version = to_hex(sha256(canonical(whole))).substr(0, 16);
    checked_.policy = without_version.with("version", policy.version);
  }

  Check& check_;
  ToolText text_;
  const Spot& spot_;
  CheckedModel checked_;
  std::vector<Member> definition_;
};

}  // namespace

std::optional<Value> check_temperature(Check& check, const Spot& spot) {
  const Value& number = spot->scalar;
  if (number.is_number() && number.as_number() >= 0 && number.as_number() <= 2) return number;
  check.fault(spot, "must be a number from 0 to 2");
  return std::nullopt;
}

std::optional<Value> check_max_tokens(Check& check, const Spot& spot) {
  const auto count = check.count(spot, kMaxTokensMax);
  return count ? std::optional<Value>(static_cast<double>(*count)) : std::nullopt;
}

CheckedModel check_model(Check& check, std::string_view name, const Spot& spot) {
  return ModelCheck(check, name, spot).run();
}

}  // namespace ae::agents

// ModelCheck: models of an agents file: provider, endpoint, and the policy of their calls.
#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "agents/checks.h"
#include "agents/tool_text.h"
#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/model_calls.h"
#include "plan/price.h"
#include "schema/closed_schema.h"

namespace ae::agents {
namespace {

constexpr Duration kTimeout = std::chrono::minutes(2);  // models take longer than other tools
constexpr std::size_t kModelNameMax = 256;
constexpr std::size_t kPartsMax = 256;
constexpr int kMaxTokens = 4096;
constexpr std::string_view kAnthropic = "anthropic";

class ModelCheck {
 public:
  ModelCheck(CheckContext& check, std::string_view name, const SourceNode& source_node)
      : check_(check), text_(check), source_node_(source_node) {
    checked_.tool.name = model_tool_name(name);
    checked_.tool.policy.name = checked_.tool.name;
  }

  CheckedModel run() {
    const std::size_t before = check_.count();
    if (check_.mapping(source_node_, Mapping::model,
                       {{"fallback", "model fallback is not available yet"}})) {
      if (const auto description = source_node_.find("description")) check_.text(*description);
      provider();
      name();
      transport();
      settings();
      if (const auto price = source_node_.find("price")) this->price(*price);
      if (const auto stream = source_node_.find("stream"))
        streams_ = check_.boolean(*stream) != false;
      policy();
    }
    checked_.is_valid = check_.count() == before;
    if (checked_.is_valid) finish();
    return std::move(checked_);
  }

 private:
  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  void provider() {
    const auto source_node = check_.required(source_node_, "provider", "openai or anthropic");
    const auto text = source_node ? check_.text(*source_node) : std::nullopt;
    if (!text) return;
    ClosestName nearest(*text);
    for (const std::string_view known : words_of(Words::provider)) {
      if (*text == known) checked_.tool.kind = known;
      nearest.consider(known);
    }
    if (!checked_.tool.kind.empty()) return;
    check_.report(
        *source_node,
        "unsupported provider; use `openai` (Chat Completions, and compatible servers) or "
        "`anthropic` (Messages)",
        nearest.best(), Code::unsupported);
  }

  void name() {
    const auto source_node =
        check_.required(source_node_, "model", "the provider's name for the model");
    if (!source_node) return;
    auto text = text_.literal(*source_node);
    if (!text) return;
    if (text->empty() || text->size() > kModelNameMax || has_expression(*text)) {
      return check_.report(*source_node, "a model name must have 1 to 256 bytes and no ${");
    }
    checked_.model = *std::move(text);
  }

  void transport() {
    if (const auto source_node =
            check_.required(source_node_, "base_url", "such as https://api.openai.com/v1")) {
      base_url(*source_node);
    }
    const auto key = source_node_.find("api_key");
    const auto text = key ? check_.text(*key) : std::nullopt;
    if (!text) return;
    if (!is_secret_reference(*text)) {
      return check_.report(*key, "use secret:NAME; literal keys are not allowed");
    }
    put("api_key", *text);
  }

  void base_url(const SourceNode& source_node) {
    auto text = text_.resolved(source_node, Secrets::refused);
    if (!text) return;
    const std::size_t before = check_.count();
    text_.url(source_node, *text);
    if (check_.count() != before) return;
    const auto parts = Template::parts(*text);
    if (!parts || parts->size() > 1) {
      check_.report(source_node, "only ${ env.NAME } is allowed here", {}, Code::unsupported);
    } else if (text->find('?') != text->npos) {
      check_.report(source_node,
                    fmt::format("a query is not allowed: {} is appended",
                                speaks_messages() ? "/messages" : "/chat/completions"));
    }
    put("base_url", *std::move(text));
  }

  void settings() {
    if (const auto source_node = source_node_.find("temperature")) {
      const double most = temperature_max(checked_.tool.kind);
      if (auto number = check_temperature(check_, *source_node, most))
        checked_.temperature = number;
    }
    if (const auto source_node = source_node_.find("max_tokens")) {
      if (auto number = check_max_tokens(check_, *source_node)) checked_.max_tokens = number;
    } else if (speaks_messages()) {
      checked_.max_tokens = kMaxTokens;  // the provider requires it, and requests are recorded
    }
    if (const auto source_node = source_node_.find("max_tokens_name")) {
      if (speaks_messages())
        check_.report(*source_node, "not supported by this provider; remove it");
      const auto word = check_.word(*source_node, Words::max_tokens_name);
      if (word == "max_tokens") put("max_tokens_name", *word);
    }
  }

  void price(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::price)) return;
    engine::Price price;
    const auto put_amount = [&](std::string_view key, auto& amount) {
      const bool must = key != "cached";
      const auto at = must ? check_.required(source_node, key, "the price of a million tokens")
                           : source_node.find(key);
      if (!at) return;
      const Value& scalar = (*at)->scalar;
      const std::string text = scalar.is_string()   ? scalar.as_string()
                               : scalar.is_number() ? canonical(scalar)
                                                    : std::string();
      if (auto micros = engine::price_from_text(text)) {
        amount = *micros;
      } else {
        check_.report(*at, micros.error().message);
      }
    };
    put_amount(field::input, price.input);
    put_amount("output", price.output);
    put_amount("cached", price.cached);
    price_ = engine::to_json(price);
  }

  bool speaks_messages() const { return checked_.tool.kind == kAnthropic; }

  void policy() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    policy.effect = engine::EffectClass::read;  // a repeated call changes only the bill
    policy.on_in_doubt = engine::OnInDoubt::resend;
    policy.timeout = kTimeout;
    if (const auto timeout = source_node_.find("timeout")) {
      policy.timeout = check_.duration(*timeout, kDurationMin).value_or(policy.timeout);
    }
    if (const auto grace = source_node_.find("grace")) {
      policy.grace = check_.duration(*grace, Duration(0)).value_or(policy.grace);
    }
    if (const auto retry = source_node_.find("retry")) {
      check_retry(check_, *retry, version_retry_, [](std::string_view) { return true; });
      policy.retry = read_retry(*retry, version_retry_);
    } else {
      policy.retry = default_read_retry();
    }
  }

  // Of requests of code, which name no model. Those of plans and loops are complete.
  Value defaults() const {
    std::vector<Member> defaults{{"model", checked_.model}};
    if (checked_.temperature) defaults.emplace_back("temperature", *checked_.temperature);
    if (checked_.max_tokens) defaults.emplace_back("max_tokens", *checked_.max_tokens);
    return Value::object(std::move(defaults));
  }

  void finish() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    policy.provider = checked_.tool.kind;
    checked_.tool.definition = Value::object(std::move(definition_));
    const Value without_version = Value::object({{"effect", "read"},
                                                 {"on_in_doubt", "resend"},
                                                 {"timeout", to_text(policy.timeout)},
                                                 {"grace", to_text(policy.grace)},
                                                 {"dedupe_window", to_text(*policy.dedupe_window)},
                                                 {"retry", retry_value(version_retry_)},
                                                 {"provider", policy.provider}});
    const Value whole = Value::object({{field::kind, checked_.tool.kind},
                                       {"definition", checked_.tool.definition},
                                       {"policy", without_version}});
    policy.version = to_hex(sha256(canonical(whole))).substr(0, 16);
    checked_.policy = without_version.with(field::version, policy.version)
                          .with("retry", retry_value(policy.retry));
    // Streaming, defaults and price are not part of a model's identity: they do not change its version.
    if (!streams_) {
      checked_.tool.definition = checked_.tool.definition.with("stream", false);
    }
    checked_.tool.definition = checked_.tool.definition.with("defaults", defaults());
    if (!price_.is_null()) checked_.policy = checked_.policy.with("price", price_);
  }

  CheckContext& check_;
  ToolText text_;
  const SourceNode& source_node_;
  CheckedModel checked_;
  std::vector<Member> definition_;
  engine::RetryPolicy version_retry_;  // the part that the version covers
  bool streams_ = true;
  Value price_;
};

}  // namespace

double temperature_max(std::string_view provider) { return provider == kAnthropic ? 1 : 2; }

std::optional<Value> check_temperature(CheckContext& check, const SourceNode& source_node,
                                       double most) {
  const Value& number = source_node->scalar;
  if (number.is_number() && number.as_number() >= 0 && number.as_number() <= most) return number;
  check.report(source_node, fmt::format("must be a number from 0 to {}", canonical(Value(most))));
  return std::nullopt;
}

void check_parts(CheckContext& check, const SourceNode& content) {
  if (content->items.empty() || content->items.size() > kPartsMax) {
    return check.report(content, "has 1 to 256 parts");
  }
  for (std::size_t i = 0; i < content->items.size(); ++i) {
    const SourceNode part = content.item(i);
    if (!check.any_mapping(part)) continue;
    const auto type = check.required(part, "type", "text or image");
    const Shape& shape = shape_of(Mapping::content_part);
    const auto word = type ? check.word(*type, shape.kinds) : std::nullopt;
    if (!word) continue;
    const bool is_image = *word == "image";
    const std::string_view key = is_image ? "url" : "text";
    if (!check.mapping(part, shape.keys_of(*word))) continue;
    const auto field = check.required(part, key, is_image ? "the URL of the image" : "the text");
    const auto text = field ? check.text(*field) : std::nullopt;
    if (!text) continue;
    if (text->empty()) {
      check.report(*field, "must not be empty");
    } else if (is_image && !engine::has_literal_host(*text)) {
      check.report(*field,
                   "must start with a literal https://HOST/ or data:image/…;base64, so that data "
                   "cannot choose the host");
    }
  }
}

std::optional<Value> check_answer_schema(CheckContext& check, const SourceNode& source_node,
                                         std::string_view provider) {
  if (!check.schema(source_node)) return std::nullopt;
  Value schema = source_node->value();
  if (has_expression(canonical(schema))) {
    check.report(source_node, "expressions are not allowed here");
    return std::nullopt;
  }
  if (provider == kAnthropic && !is_closed(schema)) {
    check.report(source_node, "this provider needs additionalProperties: false on every object");
    return std::nullopt;
  }
  return schema;
}

bool repairs_answers(CheckContext& check, const SourceNode& source_node) {
  const bool holds = source_node.find("schema").has_value();
  const auto repair = source_node.find("repair");
  if (!repair) return holds;
  const auto value = check.boolean(*repair);
  if (!holds) check.report(*repair, "`repair` needs a `schema`");
  return holds && value != false;
}

std::optional<Value> check_max_tokens(CheckContext& check, const SourceNode& source_node) {
  const auto count = check.count(source_node, kMaxTokensMax);
  return count ? std::optional<Value>(static_cast<double>(*count)) : std::nullopt;
}

CheckedModel check_model(CheckContext& check, std::string_view name,
                         const SourceNode& source_node) {
  return ModelCheck(check, name, source_node).run();
}

}  // namespace ae::agents

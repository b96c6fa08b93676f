// Prints each kind of entry; a heading names the node when it changes.
#include "cli/transcript_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

#include "base/counted.h"
#include "cli/phrases.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

constexpr std::string_view kRedacted = "(redacted)";

std::span<const Value> values_of(const Value& value) {
  return value.is_array() ? value.items() : std::span<const Value>();
}

std::uint64_t positive_of(const Value& value) {
  return value.is_integer() && value.as_int() > 0 ? static_cast<std::uint64_t>(value.as_int()) : 0;
}

// 1204 → "1,204"
std::string grouped_text(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string counted_text(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}", grouped_text(count), noun_of(count, what));
}

std::string tokens_text(const Value& usage) {
  const std::uint64_t total = positive_of(usage["total_tokens"]);
  const std::uint64_t parts =
      positive_of(usage["input_tokens"]) + positive_of(usage["output_tokens"]);
  return counted_text(total != 0 ? total : parts, "token");
}

std::string ms_text(const Value& duration_us) {
  if (!duration_us.is_integer()) return {};
  return fmt::format("{} ms", (positive_of(duration_us) + 500) / 1000);
}

void add_part(std::string& text, const std::string& part) {
  if (part.empty()) return;
  text += (text.empty() ? "" : " · ") + part;
}

// A message's content: text, or a list of parts.
Value content_value(const Value& content) {
  if (!content.is_array()) return content;
  std::string text;
  for (const Value& part : content.items()) {
    if (!text.empty()) text += "\n";
    const std::string_view url = part.text("url");
    if (part.text("type") != "image") {
      text += part["text"].is_string() ? std::string(part.text("text")) : canonical(part);
    } else if (url.starts_with("data:")) {
      text += fmt::format("(image, {} bytes, in the message)", url.size());
    } else {
      text += fmt::format("(image {})", url);
    }
  }
  return text;
}

// The destination of a message or signal: the channel or the correlation key.
std::string address_text(const Value& entry) {
  return safe(
      entry.text(entry[field::channel].is_string() ? field::channel : field::correlation_key));
}

std::string with_indent(std::string text) {
  for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 3) {
    text.replace(at, 1, "\n  ");
  }
  return text;
}

std::string by_text(const Value& entry) {
  std::string text;
  if (entry[field::by].is_string()) text += fmt::format(" by {}", safe(entry.text(field::by)));
  if (entry[field::note].is_string())
    text += fmt::format(": {}", message_text(entry.text(field::note)));
  return text;
}

bool was_erased(const Value& entry, std::string_view name) {
  return std::ranges::any_of(values_of(entry["redacted"]),
                             [&](const Value& one) { return one == Value(name); });
}

}  // namespace

std::string TranscriptText::head(const Value& transcript) const {
  const Value& totals = transcript["totals"];
  const std::string status(transcript.text("status"));
  std::string text = style_.paint(Tint::bold, fmt::format("job {}", safe(transcript.text("id"))));
  add_part(text, fmt::format("agent {}", safe(transcript.text(field::agent))));
  add_part(text, style_.paint(status_tint(status), safe(status)));
  if (const auto answers = positive_of(totals["answers"]); answers > 0) {
    add_part(text, counted_text(answers, "model answer"));
  }
  add_part(text, calls_text(positive_of(totals["tool_calls"]), positive_of(totals["repeated"]),
                            "tool call"));
  if (positive_of(totals["answers"]) > 0) add_part(text, tokens_text(totals));
  if (totals["cost_micros"].is_integer()) {
    add_part(text, fmt::format("cost {}", amount_text(positive_of(totals["cost_micros"]))));
  }
  if (transcript[field::forked_from].is_object()) {
    add_part(text, fmt::format("fork of {}", safe(transcript[field::forked_from].text("job_id"))));
  }
  return text + "\n";
}

std::string TranscriptText::clip(std::string text) {
  if (style_.value_max == 0 || width_of(text) <= style_.value_max) return text;
  was_cut_ = true;
  std::string kept;
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) end++;
    const std::string_view one = std::string_view(text).substr(at, end - at);
    width += one == "\n" ? 1 : width_of(one);
    if (width >= style_.value_max) break;
    kept += one;
    at = end;
  }
  return kept + "…";
}

std::string TranscriptText::shown(const Value& value, const Value& entry, std::string_view name) {
  if (was_erased(entry, name)) return std::string(kRedacted);
  if (value.is_string()) return with_indent(clip(safe(value.as_string(), true)));
  return clip(safe_json(canonical(value)));
}

std::string TranscriptText::heading(const Value& entry) {
  if (!entry[field::node_id].is_string()) return {};
  std::string location = safe(entry.text(field::node_id));
  if (entry["item"].is_integer()) location += fmt::format("[{}]", entry["item"].as_int());
  if (entry[field::position].is_string()) {
    location += fmt::format(" {}", safe(entry.text(field::position)));
  }
  if (const std::string_view role = entry.text("role"); role == "probe" || role == "compensation") {
    location += fmt::format(" ({})", role);
  }
  if (entry["imported"] == Value(true)) location += " (from the origin)";
  if (location == location_) return {};
  location_ = location;
  return fmt::format("\n{}\n", style_.paint(Tint::bold, fmt::format("node {}", location)));
}

// The call succeeded and its result broke the schema.
bool is_refused(const Value& error) { return error.text(field::code) == "tool_output_invalid"; }

// The outcome of an unsuccessful call. `changes`: it may have had an effect.
std::string TranscriptText::outcome(const Value& entry, bool changes) {
  const Value& error = entry[field::error];
  const bool refused = is_refused(error);
  const bool unknown = changes && !refused && entry[field::definite] == Value(false);
  std::string text = unknown ? "outcome unknown" : safe(entry.text(field::outcome));
  if (const std::string_view code = error.text(field::code); !code.empty()) {
    const char* const lead = unknown              ? "outcome unknown: "
                             : refused && changes ? "applied, and its result was refused: "
                                                  : "";
    text = fmt::format("{}{}", lead, safe(code));
  }
  if (was_erased(entry, "error.message")) {
    text += fmt::format(": {}", kRedacted);
  } else if (error["message"].is_string()) {
    text += fmt::format(": {}", clip(message_text(error.text("message"))));
  }
  return style_.paint(Tint::bad, text);
}

// "turn 1 · model main (gpt-5) · 1,204 tokens · cost 0.0012 · 12 ms"
std::string TranscriptText::answer_head(const Value& entry) const {
  std::string head;
  if (entry["turn"].is_integer()) {
    head = style_.paint(Tint::accent, fmt::format("turn {}", entry["turn"].as_int() + 1));
  }
  if (entry["model"].is_string())
    add_part(head, fmt::format("model {}", safe(entry.text("model"))));
  if (entry["answered_by"].is_string())
    head += fmt::format(" ({})", safe(entry.text("answered_by")));
  if (head.empty()) head = "model";
  if (entry[field::try_].is_integer() && entry[field::try_].as_int() > 1) {
    add_part(head, fmt::format("try {}", entry[field::try_].as_int()));
  }
  if (entry[field::usage].is_object()) add_part(head, tokens_text(entry[field::usage]));
  if (entry["cost_micros"].is_integer()) {
    add_part(head, fmt::format("cost {}", amount_text(positive_of(entry["cost_micros"]))));
  }
  add_part(head, ms_text(entry[field::duration_us]));
  if (entry[field::late] == Value(true)) add_part(head, field::late);
  return head + "\n";
}

std::string TranscriptText::answer(const Value& entry) {
  std::string text = answer_head(entry);
  if (entry.text(field::outcome) != "success")
    return fmt::format("{}✗ {}\n", text, outcome(entry, false));
  const bool calls = !values_of(entry["tool_calls"]).empty();
  if (!calls || !entry.text("text").empty() || was_erased(entry, "text")) {
    text += fmt::format("{}{}\n", tag("assistant"), shown(entry["text"], entry, "text"));
  }
  if (entry["refusal"].is_string()) {
    text += fmt::format("{}{}\n", tag("refusal"), shown(entry["refusal"], entry, "text"));
  }
  if (!entry[field::error].is_null()) text += fmt::format("✗ {}\n", outcome(entry, false));
  return text;
}

std::string TranscriptText::tool_call(const Value& entry) {
  const std::string tool(was_erased(entry, "tool") ? kRedacted : entry.text("tool"));
  std::string text = fmt::format("→ {}", style_.paint(Tint::bold, safe(tool)));
  const bool again = entry[field::try_].is_integer() && entry[field::try_].as_int() > 1;
  if (again) {
    text += "  " + style_.paint(Tint::dim, fmt::format("try {}", entry[field::try_].as_int()));
  } else {
    text += " " + shown(entry[field::arguments], entry, field::arguments);
  }
  if (entry[field::effect_class].is_string() && !again) {
    text +=
        "  " + style_.paint(Tint::dim, fmt::format("({})", safe(entry.text(field::effect_class))));
  }
  if (entry["child"].is_object()) {
    text += "  " +
            style_.paint(Tint::dim, fmt::format("child job {}", safe(entry["child"].text("id"))));
  }
  text += "\n";
  if (entry[field::effect_class].is_string()) {
    effects_[std::string(entry.text(field::step_id))] = entry.text(field::effect_class);
  }
  const Value& refused = entry["refused"];
  if (refused.is_object()) {
    const bool erased = was_erased(entry, "refused.message");
    text += fmt::format(
        "← ✗ {}: {}\n",
        style_.paint(Tint::bad, fmt::format("refused: {}", safe(refused.text(field::code)))),
        erased ? std::string(kRedacted) : clip(message_text(refused.text("message"))));
  }
  return text;
}

std::string TranscriptText::result(const Value& entry) {
  std::string text = "← ";
  if (entry["tool"].is_string()) text += fmt::format("{} ", safe(entry.text("tool")));
  const std::string_view outcome_name = entry.text(field::outcome);
  if (outcome_name == "success" && entry[field::error].is_null()) {
    text += shown(entry[field::result], entry, field::result);
  } else if (outcome_name == "input_required") {
    text += "has a question";
  } else {
    const auto effect = effects_.find(entry.text(field::step_id));
    const bool changes = effect != effects_.end() && effect->second != "read";
    const bool unknown =
        changes && !is_refused(entry[field::error]) && entry[field::definite] == Value(false);
    text += fmt::format("{} {}", unknown ? "?" : "✗", outcome(entry, changes));
  }
  std::string more;
  if (const Value& child = entry["child"]; child.is_object()) {
    more = fmt::format("child job {}: {}", safe(child.text("id")), safe(child.text("status")));
  }
  add_part(more, ms_text(entry[field::duration_us]));
  if (entry[field::late] == Value(true)) add_part(more, field::late);
  if (!more.empty()) text += "  " + style_.paint(Tint::dim, more);
  return text + "\n";
}

std::string TranscriptText::approval(const Value& entry) {
  std::string text =
      style_.paint(Tint::warn, fmt::format("approval {}", safe(entry.text(field::state))));
  if (entry["tool"].is_string()) text += fmt::format(": {}", safe(entry.text("tool")));
  if (entry[field::arguments].is_object() || was_erased(entry, field::arguments)) {
    text += " " + shown(entry[field::arguments], entry, field::arguments);
  }
  return fmt::format("{}{}\n", text, by_text(entry));
}

std::string TranscriptText::tag(std::string_view name) const {
  return style_.paint(Tint::dim, fmt::format("[{}]", safe(name))) + " ";
}

std::string TranscriptText::shown_if(const Value& entry, std::string_view name) {
  if (entry[name].is_null() && !was_erased(entry, name)) return {};
  return " " + shown(entry[name], entry, name);
}

std::string TranscriptText::input(const Value& entry) {
  return fmt::format("{}{}\n", tag(field::input), shown(entry[field::input], entry, field::input));
}

std::string TranscriptText::message(const Value& entry) {
  return fmt::format("{}{}\n", tag(entry.text("from")),
                     shown(content_value(entry["content"]), entry, "content"));
}

std::string TranscriptText::plan(const Value& entry) {
  const std::string name = fmt::format("plan {}", positive_of(entry["plan_number"]));
  std::string text = fmt::format("\n{} by {}:", style_.paint(Tint::bold, name),
                                 safe(entry.text(field::planned_by)));
  for (const Value& node : values_of(entry["nodes"])) {
    if (node.is_string()) text += " " + safe(node.as_string());
  }
  return text + "\n";
}

std::string TranscriptText::question(const Value& entry) {
  std::string text = fmt::format("{}{}: {}", tag("question"), safe(entry.text("tool")),
                                 shown(entry["message"], entry, "message"));
  if (entry["url"].is_string()) text += " " + safe(entry.text("url"));
  return text + "\n";
}

std::string TranscriptText::wait(const Value& entry) {
  const std::string_view type = entry.text(field::wait_type);
  std::string text = fmt::format("waits for {}", safe(type));
  if (type != "timer") text += " " + address_text(entry);
  if (entry[field::due_at].is_string())
    text += fmt::format(" until {}", safe(entry.text(field::due_at)));
  return text + "\n";
}

std::string TranscriptText::reply(const Value& entry) {
  return fmt::format("← {} {}{}{}\n", safe(entry.text(field::wait_type)),
                     safe(entry.text(field::outcome)), shown_if(entry, field::payload),
                     by_text(entry));
}

std::string TranscriptText::resolution(const Value& entry) {
  return fmt::format("resolved: {}{}{}\n", safe(entry.text(field::resolution)),
                     shown_if(entry, field::result), by_text(entry));
}

std::string TranscriptText::received(const Value& entry) {
  return fmt::format("{}{}: {}{}\n", tag("received"), address_text(entry),
                     shown(entry[field::payload], entry, field::payload), by_text(entry));
}

std::string TranscriptText::budget(const Value& entry) {
  return fmt::format("{}{} {}{}\n", tag(field::budget), safe(entry.text(field::state)),
                     shown(entry[field::payload], entry, field::payload), by_text(entry));
}

std::string TranscriptText::emitted(const Value& entry) {
  return fmt::format("{}{}: {}\n", tag("emitted"), safe(entry.text("name")),
                     shown(entry[field::value], entry, field::value));
}

std::string TranscriptText::skipped(const Value& /*entry*/) {
  return style_.paint(Tint::dim, field::skipped) + "\n";
}

std::string TranscriptText::failed(const Value& entry) {
  return fmt::format("✗ {}\n", outcome(entry, false));
}

std::string TranscriptText::end(const Value& entry) {
  const std::string_view status = entry.text("status");
  std::string text =
      fmt::format("\n{}", style_.paint(status_tint(status), fmt::format("[{}]", safe(status))));
  if (status == "completed") text += " " + shown(entry[field::result], entry, field::result);
  if (entry[field::error].is_object()) text += " " + outcome(entry, false);
  text += by_text(entry);
  if (entry[field::reason].is_string())
    text += fmt::format(": {}", message_text(entry.text(field::reason)));
  return text + "\n";
}

std::string TranscriptText::entry(const Value& entry) {
  struct Kind {
    std::string_view name;
    std::string (TranscriptText::*lines)(const Value&);
  };
  // model_call has no line: its answer follows.
  static constexpr Kind kKinds[] = {{field::input, &TranscriptText::input},
                                    {"plan", &TranscriptText::plan},
                                    {"message", &TranscriptText::message},
                                    {"answer", &TranscriptText::answer},
                                    {"tool_call", &TranscriptText::tool_call},
                                    {field::result, &TranscriptText::result},
                                    {"approval", &TranscriptText::approval},
                                    {"question", &TranscriptText::question},
                                    {"wait", &TranscriptText::wait},
                                    {"reply", &TranscriptText::reply},
                                    {field::resolution, &TranscriptText::resolution},
                                    {"received", &TranscriptText::received},
                                    {field::budget, &TranscriptText::budget},
                                    {"emitted", &TranscriptText::emitted},
                                    {field::skipped, &TranscriptText::skipped},
                                    {"failed", &TranscriptText::failed},
                                    {"end", &TranscriptText::end}};
  const auto* const kind = std::ranges::find(kKinds, entry.text(field::kind), &Kind::name);
  if (kind == std::end(kKinds)) return {};
  const std::string text = (this->*kind->lines)(entry);
  return heading(entry) + text;
}

}  // namespace ae::cli

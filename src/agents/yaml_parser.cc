// YamlParser: builds a SourceTree from libyaml's events: one document, no aliases, anchors or tags;
// plain scalars have their JSON meaning, and text that only looks like a number is rejected.
#include <fmt/core.h>
#include <yaml.h>

#include <algorithm>
#include <memory>

#include "agents/source_tree.h"
#include "json/json.h"

namespace ae::agents {
namespace {

struct Event {
  yaml_event_t raw{};
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(&raw); }
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?
bool is_json_number(std::string_view text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const std::size_t from = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at - from;
  };
  const std::size_t begin = at;
  const std::size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[begin] == '0')) return false;
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (digits() == 0) return false;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (digits() == 0) return false;
  }
  return at == text.size();
}

// YAML core schema numbers that JSON does not have: +1 .5 1. 0x1F 0o17 .inf .nan
bool looks_like_number(std::string_view text) {
  const std::string_view bare =
      text.starts_with('-') || text.starts_with('+') ? text.substr(1) : text;
  for (const std::string_view word : {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"}) {
    if (bare == word) return true;
  }
  const auto all_of = [](std::string_view digits, std::string_view allowed) {
    return !digits.empty() && digits.find_first_not_of(allowed) == digits.npos;
  };
  if (bare.starts_with("0x")) return all_of(bare.substr(2), "0123456789abcdefABCDEF");
  if (bare.starts_with("0o")) return all_of(bare.substr(2), "01234567");
  if (is_json_number(bare)) return true;  // with a plus sign
  const std::size_t e = bare.find_first_of("eE");
  const std::string_view mantissa = bare.substr(0, e);
  if (e != bare.npos && !is_json_number("0" + std::string(bare.substr(e)))) return false;
  if (mantissa.starts_with('.')) return all_of(mantissa.substr(1), "0123456789");
  return mantissa.ends_with('.') && is_json_number(mantissa.substr(0, mantissa.size() - 1));
}

class YamlParser {
 public:
  YamlParser(std::string_view text, Diagnostics& diagnostics)
      : text_(text), diagnostics_(diagnostics), builder_(diagnostics) {
    ready_ = yaml_parser_initialize(&parser_) == 1;
    if (!ready_) return;
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  ~YamlParser() {
    if (ready_) yaml_parser_delete(&parser_);
  }
  YamlParser(const YamlParser&) = delete;
  YamlParser& operator=(const YamlParser&) = delete;

  bool read(SourceTree& out) {
    AE_CHECK(ready_, "no memory for the YAML parser");
    bool ended = false;
    while (!ended) {
      Event event;
      if (yaml_parser_parse(&parser_, &event.raw) != 1) {
        syntax();
        return false;
      }
      ended = event.raw.type == YAML_STREAM_END_EVENT;
      if (!handle_event(event.raw)) return false;
    }
    if (!builder_.done()) {
      diagnostics_.add({},
                       {.path = {}, .message = "the file is empty; start it with `aetheris: 1`"});
      return false;
    }
    out = builder_.take();
    return true;
  }

 private:
  static SourceLocation location_of(const yaml_mark_t& mark) {
    return {.character = static_cast<std::uint32_t>(mark.index)};
  }

  void report(SourceLocation at, std::string message) {
    diagnostics_.add(at, {.path = {}, .message = std::move(message)});
  }

  // False = stop parsing.
  bool handle_event(const yaml_event_t& event) {
    const SourceLocation at = location_of(event.start_mark);
    switch (event.type) {
      case YAML_DOCUMENT_START_EVENT:
        return document(event, at);
      case YAML_ALIAS_EVENT:
        report(at, "aliases (*name) are not supported; repeat the value");
        return builder_.expects_key() ? (builder_.key("*", at), true)
                                      : builder_.scalar({}, at, true);
      case YAML_SCALAR_EVENT:
        return scalar(event, at);
      case YAML_SEQUENCE_START_EVENT:
        reject_anchor_and_tag(event.data.sequence_start.anchor, event.data.sequence_start.tag, at);
        return open(SourceTree::Kind::list, at);
      case YAML_MAPPING_START_EVENT:
        reject_anchor_and_tag(event.data.mapping_start.anchor, event.data.mapping_start.tag, at);
        return open(SourceTree::Kind::mapping, at);
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        return builder_.close();
      default:
        return true;
    }
  }

  bool document(const yaml_event_t& event, SourceLocation at) {
    if (builder_.done()) {
      report(at, "a file can have only one document; a second one starts here");
      return false;
    }
    const auto& start = event.data.document_start;
    const bool old = start.version_directive != nullptr && start.version_directive->minor < 2;
    if (old || start.tag_directives.start != start.tag_directives.end) {
      report(at, "directives (%YAML, %TAG) are not supported; this file is YAML 1.2");
    }
    return true;
  }

  bool open(SourceTree::Kind kind, SourceLocation at) {
    if (builder_.expects_key()) {
      report(at, "a key must be a plain word or a string");
      return false;
    }
    return builder_.open(kind, at);
  }

  void reject_anchor_and_tag(const unsigned char* anchor, const unsigned char* tag,
                             SourceLocation at) {
    if (anchor != nullptr) report(at, "anchors (&name) are not supported; repeat the value");
    if (tag != nullptr) report(at, "tags (!name) are not supported; quote strings");
  }

  bool scalar(const yaml_event_t& event, SourceLocation at) {
    const auto& raw = event.data.scalar;
    reject_anchor_and_tag(raw.anchor, raw.tag, at);
    std::string text(reinterpret_cast<const char*>(raw.value), raw.length);
    const bool plain = raw.style == YAML_PLAIN_SCALAR_STYLE;
    if (builder_.expects_key()) {
      if (plain && text.empty()) report(at, "a key is missing before the colon");
      if (plain && text == "<<") report(at, "merge keys (<<) are not supported; repeat the keys");
      builder_.key(std::move(text), at);
      return true;
    }
    const std::size_t before = diagnostics_.size();
    Value value = plain ? plain_value(text, at) : Value(text);
    return builder_.scalar(std::move(value), at,
                           raw.tag != nullptr || diagnostics_.size() != before);
  }

  Value plain_value(const std::string& text, SourceLocation at) {
    if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
      return {};
    }
    if (text == "true" || text == "True" || text == "TRUE") return true;
    if (text == "false" || text == "False" || text == "FALSE") return false;
    if (is_json_number(text)) {
      auto number = parse_json(text);
      if (number) return *number;
      report(at,
             fmt::format("the number {} is too large (the largest integer is 2^53 - 1); quote it",
                         quote(text)));
      return {};
    }
    if (!looks_like_number(text)) return text;
    report(at, fmt::format("{} is ambiguous (number or string): write a JSON number, or quote it",
                           quote(text)));
    return {};
  }

  // ---- libyaml's errors

  void syntax() {
    if (parser_.error == YAML_READER_ERROR) {
      report(at_byte(parser_.problem_offset), "control characters are not allowed");
      return;
    }
    if (parser_.error == YAML_MEMORY_ERROR) {
      report({}, "not enough memory to read this file");
      return;
    }
    const SourceLocation at = location_of(parser_.problem_mark);
    report(at, reason(byte_of(at)));
  }

  std::string reason(std::size_t byte) const {
    const std::string_view problem = parser_.problem != nullptr ? parser_.problem : "";
    const std::string_view context = parser_.context != nullptr ? parser_.context : "";
    const std::size_t begin = text_.substr(0, byte).find_last_of("\r\n") + 1;
    const std::string_view line = text_.substr(begin, text_.find_first_of("\r\n", begin) - begin);
    if (has_unquoted_expression(line)) {
      return "quote the expression: \"${ … }\"";
    }
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent != line.npos && line[indent] == '\t') {
      return "indent with spaces, not tabs";
    }
    if (context.empty()) return fmt::format("invalid YAML: {}", problem);
    const std::size_t line_of_context = parser_.context_mark.line;
    if (line_of_context == parser_.problem_mark.line)
      return fmt::format("invalid YAML: {}, {}", problem, context);
    return fmt::format("invalid YAML: {}, {} that starts on line {}", problem, context,
                       line_of_context + 1);
  }

  // True if a value starts with `${`.
  static bool has_unquoted_expression(std::string_view line) {
    for (std::size_t at = line.find("${"); at != line.npos; at = line.find("${", at + 2)) {
      const std::size_t before = at == 0 ? line.npos : line.find_last_not_of(' ', at - 1);
      if (before == line.npos || std::string_view(":,[{-").find(line[before]) != line.npos) {
        return true;
      }
    }
    return false;
  }

  std::size_t byte_of(SourceLocation at) const {
    std::size_t byte = 0;
    for (std::uint32_t i = 0; i < at.character && byte < text_.size(); ++i) {
      do {
        ++byte;
      } while (byte < text_.size() && (static_cast<unsigned char>(text_[byte]) & 0xC0) == 0x80);
    }
    return byte;
  }

  SourceLocation at_byte(std::size_t byte) const {
    const std::string_view before = text_.substr(0, byte);
    return {.character = static_cast<std::uint32_t>(std::ranges::count_if(
                before, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }))};
  }

  std::string_view text_;
  Diagnostics& diagnostics_;
  SourceTreeBuilder builder_;
  yaml_parser_t parser_{};
  bool ready_ = false;
};

}  // namespace

bool read_yaml(std::string_view text, Diagnostics& diagnostics, SourceTree& out) {
  return YamlParser(text, diagnostics).read(out);
}

}  // namespace ae::agents

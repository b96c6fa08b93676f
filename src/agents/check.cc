// How a part of the agents file is read: types, words, durations, schemas and expressions, each with its fault.
#include "agents/check.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "json/json.h"

namespace ae::agents {
namespace {

constexpr std::size_t kTemplateDepthMax =
    48;  // so that an event that holds a plan stays within JSON's 64
constexpr std::size_t kSchemaDepthMax = 48;
constexpr std::size_t kTextMax = 256u << 10;  // bytes of one string that holds expressions

std::size_t depth(const Located& value) {
  std::size_t below = 0;
  for (const Located& item : value.items) below = std::max(below, depth(item));
  return value.kind == Located::Kind::scalar ? 0 : below + 1;
}

// `name`, or ["any other text"]
std::string path_part(std::string_view key) {
  if (engine::is_name(key)) return std::string(key);
  std::string quoted = shown(key);
  return "[\"" + quoted.substr(1, quoted.size() - 2) + "\"]";
}

template <class F>
void for_each_string(const Spot& spot, const F& act) {
  if (spot->is_string()) act(spot);
  for (std::size_t i = 0; i < spot->items.size(); ++i) {
    if (spot->items[i].kind == Located::Kind::scalar && !spot->items[i].is_string()) continue;
    Spot below = spot.item(i);
    if (spot->is_mapping()) below.path = spot.path_of(spot->keys[i].text);
    for_each_string(below, act);
  }
}

// Where `env.` stands right behind a `${`; npos = nowhere.
std::size_t env_in(std::string_view text) {
  for (std::size_t at = text.find("${"); at != text.npos; at = text.find("${", at + 2)) {
    const std::size_t from = text.find_first_not_of(" \t\r\n", at + 2);
    if (from == text.npos) return from;
    if (text.substr(from).starts_with("env.")) return from;
  }
  return text.npos;
}

// The JSON pointer that a message names, as in "at /properties/a: …"; "" = none.
std::string_view pointer_in(std::string_view message) {
  const std::size_t from = message.find('/');
  if (from == message.npos) return {};
  return message.substr(from, message.find_first_of(" :,`'\")", from) - from);
}

// Takes "line 2, column 5: " from the front of a message; the byte offset it names in `source`.
std::size_t take_position(std::string& message, std::string_view source) {
  std::size_t line = 0;
  std::size_t column = 0;
  const auto number = [&message](std::size_t from, std::size_t& out) {
    const char* end = message.data() + message.size();
    const auto [stop, error] =
        std::from_chars(message.data() + std::min(from, message.size()), end, out);
    return error == std::errc() ? static_cast<std::size_t>(stop - message.data()) : message.npos;
  };
  if (!message.starts_with("line ")) return 0;
  const std::size_t after_line = number(5, line);
  if (after_line == message.npos || message.compare(after_line, 9, ", column ") != 0) return 0;
  const std::size_t end = number(after_line + 9, column);
  if (end == message.npos || message.compare(end, 2, ": ") != 0) return 0;
  message.erase(0, end + 2);
  std::size_t at = 0;
  for (; line > 1 && at < source.size(); ++at) {
    if (source[at] == '\n') --line;
  }
  for (; column > 1 && at < source.size(); --column) {
    do {
      ++at;
    } while (at < source.size() && (static_cast<unsigned char>(source[at]) & 0xC0) == 0x80);
  }
  return at;
}

}  // namespace

bool names_secret_only(std::string_view text) {
  if (!text.starts_with("secret:") || text.size() == 7) return false;
  return std::ranges::all_of(text.substr(7), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

Spot follow(Spot spot, std::string_view pointer) {
  while (pointer.starts_with('/')) {
    pointer.remove_prefix(1);
    std::string part(pointer.substr(0, pointer.find('/')));
    pointer.remove_prefix(part.size());
    for (std::size_t at = 0; (at = part.find('~', at)) != part.npos; ++at) {
      part.replace(at, 2, part.substr(at, 2) == "~1" ? "/" : "~");
    }
    if (spot->is_list()) {
      std::size_t index = spot->items.size();
      std::from_chars(part.data(), part.data() + part.size(), index);
      if (index >= spot->items.size()) return spot;
      spot = spot.item(index);
    } else {
      std::optional<Spot> below = spot.find(part);
      if (!below) return spot;
      spot = *std::move(below);
    }
  }
  return spot;
}

std::optional<Spot> Spot::find(std::string_view key) const {
  const Located* found = value->find(key);
  if (found == nullptr) return std::nullopt;
  return Spot{found, path_of(key)};
}

Spot Spot::item(std::size_t index) const {
  return {&value->items[index], path + "[" + std::to_string(index) + "]"};
}

std::string Spot::path_of(std::string_view key) const {
  const std::string part = path_part(key);
  return path.empty() || part.starts_with('[') ? path + part : path + "." + part;
}

void Check::fault(const Spot& spot, std::string message, std::string suggestion, Code code) {
  if (spot->refused) return;
  fault_at(spot.at(), spot.path, std::move(message), std::move(suggestion), code);
}

void Check::fault_at(Place at, std::string path, std::string message, std::string suggestion,
                     Code code) {
  faults_.add(at, {.path = std::move(path),
                   .message = std::move(message),
                   .suggestion = std::move(suggestion),
                   .code = code});
}

std::string Check::no_tool(std::string_view name) const {
  const auto known = unusable_.find(name);
  return known == unusable_.end() ? "unknown tool " + shown(name)
                                  : shown(name) + " " + known->second;
}

bool Check::clouded(std::string_view tool) const {
  if (tool == "*") return !clouded_.empty();
  return std::ranges::any_of(clouded_, [&](const std::string& server) {
    return tool.starts_with(server) && tool.substr(server.size()).starts_with('.');
  });
}

bool Check::any_mapping(const Spot& spot) {
  if (spot->is_mapping()) return true;
  fault(spot, "must be a mapping, not " + std::string(kind_name(*spot.value)));
  return false;
}

namespace {

// The key that other workflow languages' word stands for here; "" if none of `known`.
std::string_view synonym_of(std::string_view word, Words known) {
  constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
      {"if", "when"},         {"condition", "when"},        {"depends_on", "needs"},
      {"dependsOn", "needs"}, {"after", "needs"},           {"with", "args"},
      {"arguments", "args"},  {"params", "args"},           {"parameters", "args"},
      {"inputs", "args"},     {"for_each", "map"},          {"foreach", "map"},
      {"uses", "tool"},       {"retries", "retry"},         {"prompts", "prompt"},
      {"name", "id"},         {"attempts", "max_attempts"}, {"steps", "plan"},
      {"nodes", "plan"},      {"system_prompt", "system"},  {"instructions", "system"}};
  for (const auto& [synonym, key] : kSynonyms) {
    if (synonym == word && std::ranges::find(known, key) != known.end()) return key;
  }
  return {};
}

}  // namespace

bool Check::mapping(const Spot& spot, Words known, LaterWords later) {
  if (!any_mapping(spot)) return false;
  for (const Located::Key& key : spot->keys) {
    if (full()) break;
    if (std::ranges::find(known, key.text) != known.end()) continue;
    const auto* to_come = std::ranges::find(later, key.text, &Later::word);
    if (to_come != later.end()) {
      fault_at(key.at, spot.path_of(key.text),
               "unsupported key `" + key.text + "`: " + std::string(to_come->why), {},
               Code::unsupported);
      continue;
    }
    Nearest nearest(key.text);
    for (const std::string_view word : known) nearest.look_at(word);
    std::string meant(synonym_of(key.text, known));
    if (meant.empty()) meant = nearest.take();
    std::string message = "unknown key " + shown(key.text);
    if (meant.empty()) message += "; allowed keys: " + list_of(known);
    fault_at(key.at, spot.path_of(key.text), std::move(message), std::move(meant));
  }
  return true;
}

bool Check::list(const Spot& spot) {
  if (spot->is_list()) return true;
  fault(spot, "must be a list, not " + std::string(kind_name(*spot.value)));
  return false;
}

void Check::misplaced(const Spot& spot, std::string_view owner, Words keys) {
  for (const std::string_view key : keys) {
    if (const auto found = spot.find(key)) {
      fault(*found, "`" + std::string(key) + "` belongs to " + std::string(owner));
    }
  }
}

std::optional<Spot> Check::required(const Spot& spot, std::string_view key, std::string_view hint) {
  std::optional<Spot> found = spot.find(key);
  if (!found) {
    fault_at(spot.at(), spot.path_of(key),
             "`" + std::string(key) + "` is missing: " + std::string(hint));
  }
  return found;
}

std::optional<std::string> Check::text(const Spot& spot) {
  if (spot->is_string()) return spot->scalar.as_string();
  std::string message = "must be a string, not " + std::string(kind_name(*spot.value));
  if (spot->scalar.is_number() || spot->scalar.is_bool()) message += ": quote it";
  fault(spot, std::move(message));
  return std::nullopt;
}

std::optional<bool> Check::boolean(const Spot& spot) {
  if (spot->scalar.is_bool()) return spot->scalar.as_bool();
  fault(spot, "must be true or false, not " + std::string(kind_name(*spot.value)));
  return std::nullopt;
}

std::optional<std::uint32_t> Check::count(const Spot& spot, std::uint32_t most) {
  const Value& number = spot->scalar;
  if (number.is_integer() && number.as_int() >= 1 && number.as_int() <= most) {
    return static_cast<std::uint32_t>(number.as_int());
  }
  fault(spot, "must be a whole number from 1 to " + std::to_string(most));
  return std::nullopt;
}

std::optional<Duration> Check::duration(const Spot& spot, Duration least) {
  if (spot->is_string()) {
    const auto duration = duration_from_text(spot->scalar.as_string());
    if (duration && *duration >= least) return *duration;
    if (duration) {
      fault(spot, "must be at least " + to_text(least));
      return std::nullopt;
    }
  }
  std::string meant;
  if (spot->scalar.is_integer()) meant = std::to_string(spot->scalar.as_int()) + "s";
  fault(spot,
        "must be a duration: a whole number and ms, s, m, h or d, such as 30s; at most 36500d",
        std::move(meant));
  return std::nullopt;
}

std::optional<std::uint64_t> Check::size(const Spot& spot, std::uint64_t most) {
  std::uint64_t bytes = 0;
  bool good = false;
  if (spot->scalar.is_integer() && spot->scalar.as_int() >= 0) {
    bytes = static_cast<std::uint64_t>(spot->scalar.as_int());
    good = true;
  } else if (spot->is_string()) {
    const std::string& text = spot->scalar.as_string();
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, bytes);
    const std::string_view unit(stop, end);
    const int shift = unit.empty()    ? 0
                      : unit == "KiB" ? 10
                      : unit == "MiB" ? 20
                      : unit == "GiB" ? 30
                                      : -1;
    good = error == std::errc() && shift >= 0 && bytes <= (most >> std::max(shift, 0));
    if (good) bytes <<= shift;
    if (shift >= 0 && error == std::errc() && !good) bytes = most + 1;
  }
  if (good && bytes >= 1 && bytes <= most) return bytes;
  fault(spot, good || bytes > most
                  ? "must be a size from 1 byte to " + std::to_string(most) + " bytes"
                  : "must be a size: a whole number of bytes, or with KiB, MiB or GiB");
  return std::nullopt;
}

std::optional<std::size_t> Check::word(const Spot& spot, Words words, LaterWords later) {
  const std::string_view text =
      spot->is_string() ? std::string_view(spot->scalar.as_string()) : std::string_view();
  const auto* found = std::ranges::find(words, text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  const auto* to_come = std::ranges::find(later, text, &Later::word);
  if (to_come != later.end()) {
    fault(spot, "unsupported value " + shown(text) + ": " + std::string(to_come->why), {},
          Code::unsupported);
    return std::nullopt;
  }
  Nearest nearest(text);
  for (const std::string_view word : words) nearest.look_at(word);
  fault(spot, (words.size() > 1 ? "must be one of " : "must be ") + list_of(words), nearest.take());
  return std::nullopt;
}

bool Check::name(std::string_view what, std::string_view text, Place at, const std::string& path) {
  if (engine::is_name(text)) return true;
  fault_at(at, path,
           shown(text) + " is not a valid name for " + std::string(what) +
               ": use up to 64 letters, digits, _ and -, starting with a letter or _");
  return false;
}

std::optional<Schema> Check::schema(const Spot& spot) {
  if (depth(*spot.value) > kSchemaDepthMax) {
    fault(spot, "a schema can nest at most 48 levels deep");
    return std::nullopt;
  }
  auto compiled = Schema::compile(spot->value());
  if (compiled) return *std::move(compiled);
  const Spot where = follow(spot, pointer_in(compiled.error().message));
  fault(where, "unsupported or invalid JSON Schema: " + compiled.error().message);
  return std::nullopt;
}

bool Check::templates(const Spot& spot, const Seen& seen) { return templates_below(spot, seen, 0); }

bool Check::literal_key(const Located::Key& key, const std::string& path) {
  Template compiled;
  const auto found = Template::compile(Value::object({{key.text, Value()}}), compiled);
  if (found.empty()) return true;
  fault_at(key.at, path, found.front().error.message);
  return false;
}

bool Check::templates_below(const Spot& spot, const Seen& seen, std::size_t depth_so_far) {
  if (spot->kind == Located::Kind::scalar) {
    if (!spot->is_string() || !has_expression(spot->scalar.as_string())) return true;
    if (full() || !text_fits(spot)) return false;
    Template compiled;
    const auto found = Template::compile(spot->scalar, compiled);
    template_faults(spot, found);
    if (!found.empty()) return false;
    const std::size_t before = count();
    seen(spot, compiled);
    if (count() == before) check_members(*this, spot, compiled.roots());
    return true;
  }
  if (depth_so_far == kTemplateDepthMax) {
    fault(spot, "values can nest at most 48 levels deep here");
    return false;
  }
  bool good = true;
  for (std::size_t i = 0; i < spot->items.size(); ++i) {
    Spot below = spot.item(i);
    if (spot->is_mapping()) {
      const Located::Key& key = spot->keys[i];
      below.path = spot.path_of(key.text);
      if (has_expression(key.text)) good = literal_key(key, below.path) && good;
    }
    good = templates_below(below, seen, depth_so_far + 1) && good;
  }
  return good;
}

bool Check::text_fits(const Spot& spot) {
  if (spot->scalar.as_string().size() <= kTextMax) return true;
  fault(spot, "a string with expressions can have at most 256 KiB");
  return false;
}

void Check::template_faults(const Spot& spot, std::span<const Template::Fault> found) {
  const std::string_view text =
      spot->is_string() ? std::string_view(spot->scalar.as_string()) : std::string_view();
  for (const Template::Fault& fault : found) {
    if (full()) return;
    std::string message = fault.error.message;
    const std::size_t from = std::min(fault.offset + 2, text.size());  // behind the `${`
    const std::size_t inside = from + take_position(message, text.substr(from));
    Place at = spot.at();
    at.inside = static_cast<std::uint32_t>(inside);
    fault_at(at, spot.path, "expression: " + message);
  }
}

void Check::root_fault(const Spot& string, std::string_view mention, std::string message,
                       std::string suggestion, Code code) {
  const std::size_t inside = string->scalar.as_string().find(mention);
  Place at = string.at();
  at.inside = inside == std::string::npos ? 0 : static_cast<std::uint32_t>(inside);
  fault_at(at, string.path, std::move(message), std::move(suggestion), code);
}

void refuse_env_and_secrets(Check& check, const Spot& spot) {
  for_each_string(spot, [&check](const Spot& string) {
    const std::string& text = string->scalar.as_string();
    if (names_secret_only(text)) {
      check.fault(
          string,
          "secrets are allowed in a tool's headers and env only; here it would be recorded");
    }
    const std::size_t env = env_in(text);
    if (env == text.npos) return;
    Place place = string.at();
    place.inside = static_cast<std::uint32_t>(env);
    check.fault_at(place, string.path,
                   "env. is available in `tools` and `models` only; a plan reads .input");
  });
}

bool reads_only(Check& check, const Spot& spot, Words roots) {
  const std::size_t before = check.count();
  refuse_env_and_secrets(check, spot);
  if (check.count() != before) return false;
  check.templates(spot, [&](const Spot& string, const Template& compiled) {
    for (const std::string& root : compiled.roots().roots) {
      if (std::ranges::find(roots, root) != roots.end()) continue;
      Nearest nearest(root);
      for (const std::string_view known : roots) nearest.look_at(known);
      std::string meant = nearest.take();
      std::string what = "." + root + " is not available here; available: ";
      for (const std::string_view known : roots) {
        what.append(known == *roots.begin() ? "." : ", .").append(known);
      }
      check.root_fault(string, "." + root, std::move(what), meant.empty() ? meant : "." + meant);
    }
  });
  return check.count() == before;
}

void check_members(Check& check, const Spot& string, const ExprRoots& read) {
  constexpr std::string_view kOfJob[] = {"agent", "created_at", "id", "labels"};
  constexpr std::string_view kOfCall[] = {"external_key", "invocation_id", "key", "try"};
  const std::pair<std::string_view, std::span<const std::string_view>> kFixed[] = {
      {"job", kOfJob}, {"call", kOfCall}};
  for (const auto& [root, fixed] : kFixed) {
    const auto named = read.members.find(root);
    if (named == read.members.end()) continue;
    const std::string at = std::string(".").append(root);
    const auto below = [&](std::string_view name) {
      return std::string(at).append(".").append(name);
    };
    for (const std::string& name : named->second) {
      if (std::ranges::find(fixed, name) != fixed.end()) continue;
      Nearest nearest(name);
      std::string what = at + " has no member " + shown(name) + "; available: ";
      for (const std::string_view known : fixed) {
        nearest.look_at(known);
        what.append(known == fixed.front() ? "." : ", .").append(known);
      }
      const std::string meant = nearest.take();
      const std::string written = below(name);
      const bool plain = string->scalar.as_string().find(written) != std::string::npos;
      check.root_fault(string, plain ? written : at, std::move(what),
                       meant.empty() ? meant : below(meant));
    }
  }
}

bool is_one_expression(const Located& value) {
  if (!value.is_string() || !has_expression(value.scalar.as_string())) return false;
  const auto parts = Template::parts(value.scalar.as_string());
  return parts && parts->size() == 1 && std::holds_alternative<Expr>(parts->front());
}

}  // namespace ae::agents

// The path and query of a request: encoding, and checks of parameters.
#include "api/target.h"

#include <algorithm>
#include <charconv>

namespace ae::api {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~' || c == ':';
}

void percent_encode(std::string_view text, std::string& out) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  for (const char c : text) {
    if (is_plain(c)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
}

}  // namespace

std::string target(const Path& path, const QueryPairs& query) {
  std::string out;
  for (const std::string& segment : path) {
    out += '/';
    percent_encode(segment, out);
  }
  char separator = '?';
  for (const auto& [name, value] : query) {
    out += separator;
    separator = '&';
    percent_encode(name, out);
    out += '=';
    percent_encode(value, out);
  }
  return out;
}

void Query::rename_aliases(std::span<const QueryParameter> known) {
  for (auto& [name, value] : pairs_) {
    const auto parameter = std::ranges::find(known, name, &QueryParameter::name);
    if (parameter != known.end() && !parameter->alias_of.empty()) name = parameter->alias_of;
  }
}

Status Query::check_names(std::span<const QueryParameter> known) const {
  for (const auto& [name, value] : pairs_) {
    const auto parameter = std::ranges::find(known, name, &QueryParameter::name);
    if (parameter != known.end()) {
      if (parameter->repeats || all(name).size() == 1) continue;
      return fail(Code::input_invalid, "duplicate query parameter \"{}\"", name);
    }
    std::string names;
    for (const QueryParameter& one : known) {
      if (!one.alias_of.empty()) continue;
      names.append(names.empty() ? "allowed: " : ", ").append(one.name);
    }
    if (names.empty()) names = "this route has none";
    return fail(Code::input_invalid, "unknown query parameter \"{}\"; {}", name, names);
  }
  return {};
}

Status Query::check_combination(std::string_view name,
                                std::initializer_list<std::string_view> others) const {
  for (const auto& [other, value] : pairs_) {
    if (other == name || std::ranges::find(others, std::string_view(other)) != others.end())
      continue;
    std::string names;
    for (const std::string_view one : others) {
      names.append(names.empty() ? "" : ", ").append(one);
    }
    return fail(Code::input_invalid,
                "the query parameter \"{}\" cannot be used with \"{}\"; allowed: {}", other, name,
                names);
  }
  return {};
}

const std::string* Query::find(std::string_view name) const {
  const std::string* found = nullptr;
  for (const auto& [n, value] : pairs_) {
    if (n == name) found = &value;
  }
  return found;
}

std::vector<std::string> Query::all(std::string_view name) const {
  std::vector<std::string> found;
  for (const auto& [n, value] : pairs_) {
    if (n == name) found.push_back(value);
  }
  return found;
}

Result<std::optional<std::uint64_t>> Query::number(std::string_view name) const {
  const std::string* text = find(name);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || at != end || value > (1ull << 53) - 1) {
    return fail(Code::input_invalid, "\"{}\" must be an integer", name);
  }
  return value;
}

Result<std::size_t> Query::limit(std::size_t default_limit, std::size_t most) const {
  AE_ASSIGN(const auto value, number("limit"));
  if (!value) return default_limit;
  if (*value == 0 || *value > most) {
    return fail(Code::input_invalid, "\"limit\" is 1 to {}", most);
  }
  return static_cast<std::size_t>(*value);
}

}  // namespace ae::api

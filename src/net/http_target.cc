// Percent-decoding of a request's path and query.
#include "net/http_target.h"

#include <algorithm>

#include "base/utf8.h"

namespace ae::net {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// False if the text has a `%` without two hex digits, or is not UTF-8.
bool percent_decode(std::string_view text, bool plus_is_blank, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_blank) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (text.size() - i < 3) return false;
      const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return false;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return is_utf8(out);
}

// Calls `each` with the pieces between separators; stops when it returns false.
template <class Each>
bool for_each_part(std::string_view text, char separator, Each each) {
  for (;;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (!each(text.substr(0, end))) return false;
    if (end == text.size()) return true;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

Result<HttpTarget> parse_target(std::string_view target) {
  const auto is_allowed = [](char c) { return c > 0x20 && c < 0x7F && c != '#'; };
  if (!target.starts_with('/') || !std::ranges::all_of(target, is_allowed)) {
    return fail(Code::input_invalid, "the target is not a path that begins with /");
  }
  HttpTarget found;
  const std::size_t question = std::min(target.find('?'), target.size());
  std::string piece;
  const bool path_is_good = for_each_part(target.substr(1, question - 1), '/', [&](auto segment) {
    if (!percent_decode(segment, false, piece)) return false;
    if (piece == "." || piece == ".." || std::ranges::any_of(piece, is_control)) return false;
    found.path.push_back(piece);
    return true;
  });
  if (!path_is_good) return fail(Code::input_invalid, "the path has an invalid segment");
  if (found.path.size() == 1 && found.path[0].empty()) found.path.clear();
  if (question == target.size()) return found;
  const bool query_is_good = for_each_part(target.substr(question + 1), '&', [&](auto pair) {
    if (pair.empty()) return true;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    std::string key, value;
    if (!percent_decode(pair.substr(0, equals), true, key)) return false;
    if (!percent_decode(pair.substr(std::min(equals + 1, pair.size())), true, value)) return false;
    if (key.find('\0') != std::string::npos || value.find('\0') != std::string::npos) return false;
    found.query.emplace_back(std::move(key), std::move(value));
    return true;
  });
  if (!query_is_good) {
    return fail(Code::input_invalid, "the query is not UTF-8 text, percent-encoded");
  }
  return found;
}

}  // namespace ae::net

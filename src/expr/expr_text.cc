// The functions of texts, and the formats (@json, @uri, …).
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/utf8.h"
#include "expr/expr_eval.h"
#include "expr/expr_functions.h"
#include "expr/expr_lex.h"
#include "json/json.h"
#include "json/order.h"

namespace ae::expr {
namespace {

bool require_text(const Call& c) {
  if (c.in.is_string()) return c.eval.spend_text(c.node, c.in.as_string().size());
  return c.eval.fail(
      c.node, fmt::format("{} needs a string, not {}", c.node.function->name, kind_name(c.in)));
}
bool require_text_arg(const Call& c) {
  if (c.args[0].is_string()) return c.eval.spend_text(c.node, c.args[0].as_string().size());
  return c.eval.fail(c.node, fmt::format("{} takes a string, not {}", c.node.function->name,
                                         kind_name(c.args[0])));
}

bool tostring(const Call& c) {
  if (c.in.is_string()) return return_value(c, Value(c.in));
  std::string text;
  return append_text(c.eval, c.node, c.in, text) && return_value(c, Value(std::move(text)));
}

bool tojson(const Call& c) {
  return c.eval.spend_value(c.node, c.in) && return_value(c, Value(canonical(c.in)));
}

bool fromjson(const Call& c) {
  if (!require_text(c)) return false;
  const std::string& text = c.in.as_string();
  // Spends fuel before parsing: for each value (they follow one of these characters), and for
  // sorting object members.
  std::size_t members = 0;
  std::size_t values = 1;
  for (const char ch : text) {
    members += ch == ':' ? 1u : 0u;
    values += ch == ',' || ch == '[' || ch == '{' ? 1u : 0u;
  }
  if (!c.eval.spend_bytes(c.node, text.size()) ||
      !c.eval.spend(c.node, 3 * values + 2 * members + sort_cost(members, 0))) {
    return false;
  }
  auto value = parse_json(text, {.depth_max = c.eval.work_depth_max() / 2});
  if (!value) return c.eval.fail(c.node, value.error().message);
  return return_value(c, std::move(*value));
}

bool tonumber(const Call& c) {
  if (c.in.is_number()) return return_value(c, Value(c.in));
  if (!require_text(c) ||
      !c.eval.spend_search(c.node, std::min<std::size_t>(c.in.as_string().size(), 400)))
    return false;
  auto value =
      c.in.as_string().size() > 400 ? Result<Value>(Value()) : parse_json(c.in.as_string());
  if (!value || !value->is_number()) {
    return c.eval.fail(c.node, "this string is not a number in JSON");
  }
  return return_value(c, std::move(*value));
}

template <char From, char To, int Shift>
bool change_case(const Call& c) {
  if (!require_text(c)) return false;
  std::string text = c.in.as_string();
  for (char& ch : text) {
    if (ch >= From && ch <= To) ch = static_cast<char>(ch + Shift);
  }
  return return_value(c, Value(std::move(text)));
}

// The code point at `i`; moves `i` past it. REQUIRES: valid UTF-8.
char32_t next_code_point(std::string_view text, std::size_t& i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i++);
  if (lead < 0x80) return lead;
  const int tail = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t c = lead & (0x3Fu >> tail);
  for (int k = 0; k < tail; ++k) c = c << 6 | (byte(i++) & 0x3Fu);
  return c;
}

bool explode(const Call& c) {
  if (!require_text(c)) return false;
  std::vector<Value> codes;
  const std::string& text = c.in.as_string();
  for (std::size_t i = 0; i < text.size();) {
    if (!c.eval.spend(c.node, 1)) return false;
    codes.emplace_back(static_cast<double>(next_code_point(text, i)));
  }
  return return_value(c, Value::array(std::move(codes)));
}

bool implode(const Call& c) {
  if (!c.in.is_array()) return c.eval.fail(c.node, "implode needs an array of code points");
  if (!c.eval.spend(c.node, c.in.size())) return false;
  std::string text;
  for (const Value& code : c.in.items()) {
    const std::int64_t n = code.is_integer() ? code.as_int() : -1;
    if (n < 0 || n > 0x10FFFF || (n >= 0xD800 && n <= 0xDFFF)) {
      return c.eval.fail(c.node,
                         "implode needs code points: integers up to 1114111, no surrogates");
    }
    append_utf8(static_cast<std::uint32_t>(n), text);
  }
  return return_value(c, Value(std::move(text)));
}

bool ascii(const Call& c) {
  const std::int64_t n = c.in.is_integer() ? c.in.as_int() : -1;
  if (n < 0 || n > 127) return c.eval.fail(c.node, "ascii needs an integer from 0 to 127");
  return return_value(c, Value(std::string(1, static_cast<char>(n))));
}

bool startswith(const Call& c) {
  return require_text(c) && require_text_arg(c) &&
         return_value(c, Value(c.in.as_string().starts_with(c.args[0].as_string())));
}
bool endswith(const Call& c) {
  return require_text(c) && require_text_arg(c) &&
         return_value(c, Value(c.in.as_string().ends_with(c.args[0].as_string())));
}

// Comparing costs as much if the difference is at the end.
bool compares(const Call& c) {
  if (!c.in.is_string() || !c.args[0].is_string()) return true;
  return c.eval.spend(c.node, std::min(c.in.as_string().size(), c.args[0].as_string().size()) / 64);
}
// A text without the prefix, or a value of another kind, stays as it is, as in jq.
bool ltrimstr(const Call& c) {
  if (!compares(c)) return false;
  if (!c.in.is_string() || !c.args[0].is_string() ||
      !c.in.as_string().starts_with(c.args[0].as_string())) {
    return return_value(c, Value(c.in));
  }
  return require_text(c) &&
         return_value(
             c, Value(std::string_view(c.in.as_string()).substr(c.args[0].as_string().size())));
}
bool rtrimstr(const Call& c) {
  if (!compares(c)) return false;
  if (!c.in.is_string() || !c.args[0].is_string() ||
      !c.in.as_string().ends_with(c.args[0].as_string())) {
    return return_value(c, Value(c.in));
  }
  const std::string_view text = c.in.as_string();
  return require_text(c) &&
         return_value(c, Value(text.substr(0, text.size() - c.args[0].as_string().size())));
}

template <bool Left, bool Right>
bool trim(const Call& c) {
  if (!require_text(c)) return false;
  const auto is_blank = [](char ch) { return ch == ' ' || (ch >= '\t' && ch <= '\r'); };
  std::string_view text = c.in.as_string();
  while (Left && !text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (Right && !text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return return_value(c, Value(text));
}

bool split(const Call& c) {
  return require_text(c) && require_text_arg(c) &&
         split_text(c.eval, c.node, c.in.as_string(), c.args[0].as_string(), c.out);
}

// null is empty; numbers and booleans are inserted as text.
bool join(const Call& c) {
  if (!c.in.is_array() && !c.in.is_object()) {
    return c.eval.fail(c.node, fmt::format("join needs an array, not {}", kind_name(c.in)));
  }
  if (!require_text_arg(c)) return false;
  const std::string& between = c.args[0].as_string();
  std::string text;
  bool first = true;
  const auto append_item = [&](const Value& item) {
    if (item.is_array() || item.is_object()) {
      return c.eval.fail(c.node, fmt::format("join cannot join {}", kind_name(item)));
    }
    if (!c.eval.spend_text(c.node, between.size())) return false;
    if (!first) text += between;
    first = false;
    return item.is_null() || append_text(c.eval, c.node, item, text);
  };
  const bool done = c.in.is_array()
                        ? std::ranges::all_of(c.in.items(), append_item)
                        : std::ranges::all_of(c.in.members(), append_item, &Member::second);
  return done && return_value(c, Value(std::move(text)));
}

// The positions of a text in a text, in code points; of a value or a run of values in an array.
bool positions_in_text(const Call& c, std::vector<Value>& out) {
  const std::string& text = c.in.as_string();
  const std::string& wanted = c.args[0].as_string();
  if (wanted.empty()) return true;
  if (!c.eval.spend_search(c.node, text.size())) return false;
  std::size_t counted = 0;  // bytes whose code points are counted in `position`
  std::size_t position = 0;
  for (std::size_t at = find_text(text, wanted, 0); at != text.npos;
       at = find_text(text, wanted, at + 1)) {
    if (!c.eval.spend(c.node, 1) || !c.eval.spend_search(c.node, wanted.size())) return false;
    position += code_points(std::string_view(text).substr(counted, at - counted));
    counted = at;
    out.emplace_back(static_cast<std::uint64_t>(position));
  }
  return true;
}

bool positions_in_array(const Call& c, std::vector<Value>& out) {
  const auto items = c.in.items();
  const std::span<const Value> wanted =
      c.args[0].is_array() ? c.args[0].items() : std::span<const Value>(&c.args[0], 1);
  if (wanted.empty()) return true;
  for (std::size_t i = 0; i + wanted.size() <= items.size(); ++i) {
    auto order = std::strong_ordering::equal;
    for (std::size_t k = 0; k < wanted.size() && order == 0; ++k) {
      if (!c.eval.compare(c.node, items[i + k], wanted[k], order)) return false;
    }
    if (order == 0) out.emplace_back(static_cast<std::uint64_t>(i));
  }
  return true;
}

bool positions(const Call& c, std::vector<Value>& out) {
  if (c.in.is_string()) return require_text(c) && require_text_arg(c) && positions_in_text(c, out);
  if (c.in.is_array()) return positions_in_array(c, out);
  return c.eval.fail(c.node, fmt::format("{} needs a string or array, not {}",
                                         c.node.function->name, kind_name(c.in)));
}

bool indices(const Call& c) {
  std::vector<Value> found;
  if (c.in.is_null()) return return_value(c, Value());
  return positions(c, found) && return_value(c, Value::array(std::move(found)));
}
bool index(const Call& c) {
  std::vector<Value> found;
  if (c.in.is_null()) return return_value(c, Value());
  return positions(c, found) && return_value(c, found.empty() ? Value() : found.front());
}
bool rindex(const Call& c) {
  std::vector<Value> found;
  if (c.in.is_null()) return return_value(c, Value());
  return positions(c, found) && return_value(c, found.empty() ? Value() : found.back());
}

bool utf8bytelength(const Call& c) {
  return require_text(c) &&
         return_value(c, Value(static_cast<std::uint64_t>(c.in.as_string().size())));
}

constexpr Function kTextFunctions[] = {
    plain("tostring", 0, tostring),
    plain("tojson", 0, tojson),
    plain("fromjson", 0, fromjson),
    plain("tonumber", 0, tonumber),
    plain("ascii_downcase", 0, change_case<'A', 'Z', 32>),
    plain("ascii_upcase", 0, change_case<'a', 'z', -32>),
    plain("explode", 0, explode),
    plain("implode", 0, implode),
    plain("ascii", 0, ascii),
    plain("startswith", 1, startswith),
    plain("endswith", 1, endswith),
    plain("ltrimstr", 1, ltrimstr),
    plain("rtrimstr", 1, rtrimstr),
    plain("trim", 0, trim<true, true>),
    plain("ltrim", 0, trim<true, false>),
    plain("rtrim", 0, trim<false, true>),
    plain("split", 1, split),
    plain("join", 1, join),
    plain("indices", 1, indices),
    plain("index", 1, index),
    plain("rindex", 1, rindex),
    plain("utf8bytelength", 0, utf8bytelength),
};

// Formats.

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void append_uri(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain_byte = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                            (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
    if (plain_byte) {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
}

void append_html(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
}

void append_base64(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k <= text.size() ? kBase64[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
}

bool append_base64_decoded(Eval& eval, const Node& node, std::string_view text, std::string& out) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    const std::size_t value = kBase64.find(c);
    if (value == kBase64.npos) return eval.fail(node, "this is not base64");
    bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xFFFFFF;
    have += 6;
    if (have >= 8) {
      have -= 8;
      bytes += static_cast<char>(bits >> have & 0xFF);
    }
  }
  if (have >= 6) return eval.fail(node, "this is not base64: it ends within a byte");
  if (!is_utf8(bytes)) return eval.fail(node, "the decoded bytes are not text (UTF-8)");
  out += bytes;
  return true;
}

// One row of scalars, for @csv and @tsv.
bool append_row(Eval& eval, const Node& node, Format format, const Value& row, std::string& out) {
  if (!row.is_array()) return eval.fail(node, "a row of @csv or @tsv is an array");
  bool first = true;
  for (const Value& cell : row.items()) {
    if (!first) out += format == Format::csv ? ',' : '\t';
    first = false;
    if (cell.is_array() || cell.is_object()) {
      return eval.fail(node, "a cell of @csv or @tsv is not an array or object");
    }
    if (!cell.is_string()) {
      if (!cell.is_null()) write_canonical(cell, out);
      continue;
    }
    if (format == Format::csv) out += '"';
    for (const char c : cell.as_string()) {
      constexpr std::string_view kPlain = "\t\n\r\\";
      constexpr std::string_view kEscaped = "tnr\\";
      const std::size_t special = kPlain.find(c);
      if (format == Format::tsv && special != kPlain.npos) {
        out += '\\';
        out += kEscaped[special];
        continue;
      }
      if (format == Format::csv && c == '"') out += '"';
      out += c;
    }
    if (format == Format::csv) out += '"';
  }
  return true;
}

}  // namespace

std::span<const Function> text_functions() { return kTextFunctions; }

// memmem is linear (two-way search); std::string::find is quadratic on some inputs.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from) {
  if (wanted.empty()) return from <= text.size() ? from : text.npos;
  if (from >= text.size()) return text.npos;
  const void* found =
      ::memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return text.npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

bool split_text(Eval& eval, const Node& node, std::string_view text, std::string_view by,
                Value& out) {
  std::vector<Value> parts;
  const auto add_part = [&](std::string_view part) {
    parts.emplace_back(part);
    return eval.spend(node, 2 + part.size() / 64);
  };
  if (!eval.spend_search(node, text.size() + by.size())) return false;
  std::size_t from = 0;
  if (by.empty()) {
    for (std::size_t i = 0; i < text.size(); from = i) {
      next_code_point(text, i);
      if (!add_part(text.substr(from, i - from))) return false;
    }
  } else if (!text.empty()) {
    for (std::size_t at = find_text(text, by, 0); at != text.npos; at = find_text(text, by, from)) {
      if (!add_part(text.substr(from, at - from))) return false;
      from = at + by.size();
    }
    if (!add_part(text.substr(from))) return false;
  }
  out = Value::array(std::move(parts));
  return true;
}

bool append_text(Eval& eval, const Node& node, const Value& v, std::string& out) {
  if (v.is_string()) {
    if (!eval.spend_text(node, v.as_string().size())) return false;
    out += v.as_string();
    return true;
  }
  if (!eval.spend_value(node, v)) return false;
  write_canonical(v, out);
  return true;
}

bool apply_format(Eval& eval, const Node& node, Format format, const Value& v, std::string& out) {
  if (format == Format::text) return append_text(eval, node, v, out);
  if (!eval.spend_value(node, v)) return false;
  if (format == Format::json) {
    write_canonical(v, out);
    return true;
  }
  if (format == Format::csv || format == Format::tsv) {
    return eval.spend_search(node, v.extent().bytes) && append_row(eval, node, format, v, out);
  }
  std::string text;
  if (!append_text(eval, node, v, text)) return false;
  // Each of these writes at most six bytes per byte.
  if (!eval.spend_text(node, 6 * text.size())) return false;
  switch (format) {
    case Format::uri:
      append_uri(text, out);
      return true;
    case Format::html:
      append_html(text, out);
      return true;
    case Format::base64:
      append_base64(text, out);
      return true;
    default:
      return append_base64_decoded(eval, node, text, out);
  }
}

}  // namespace ae::expr

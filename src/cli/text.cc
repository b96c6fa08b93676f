#include "cli/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "base/escape_hidden.h"

namespace ae::cli {
namespace {

std::size_t columns_of(char32_t point) {
  if (point == 0x200B || point == 0x200D || (point >= 0x300 && point <= 0x36F) ||
      (point >= 0xFE00 && point <= 0xFE0F)) {
    return 0;
  }
  const bool wide = (point >= 0x1100 && point <= 0x115F) || (point >= 0x2E80 && point <= 0xA4CF) ||
                    (point >= 0xAC00 && point <= 0xD7A3) || (point >= 0xF900 && point <= 0xFAFF) ||
                    (point >= 0xFE30 && point <= 0xFE6F) || (point >= 0xFF00 && point <= 0xFF60) ||
                    (point >= 0x1F300 && point <= 0x1FAFF) ||
                    (point >= 0x20000 && point <= 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace

std::string safe(std::string_view text, bool keep_lines) { return escape_hidden(text, keep_lines); }

std::string safe_json(std::string_view json) { return escape_hidden_json(json); }

std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    width += columns_of(c.point);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string cut(std::string_view raw, std::size_t columns) {
  std::string text = safe(raw);
  if (width_of(text) <= columns) return text;
  if (columns == 0) return {};
  std::string out;
  std::size_t width = 1;  // of "…"
  std::string_view rest = text;
  while (!rest.empty()) {
    const CodePoint c = first_code_point(rest);
    if (width + columns_of(c.point) > columns) break;
    width += columns_of(c.point);
    out += rest.substr(0, c.bytes);
    rest.remove_prefix(c.bytes);
  }
  return out + "…";
}

std::string pad(std::string_view text, std::size_t columns) {
  std::string out(text);
  const std::size_t width = width_of(text);
  if (width < columns) out.append(columns - width, ' ');
  return out;
}

std::string Paint::operator()(Tint tint, std::string_view text) const {
  if (!on_ || tint == Tint::none || text.empty()) return std::string(text);
  const char* code = "";
  switch (tint) {
    case Tint::none:
      break;
    case Tint::good:
      code = "32";
      break;
    case Tint::bad:
      code = "31";
      break;
    case Tint::warn:
      code = "33";
      break;
    case Tint::dim:
      code = "2";
      break;
    case Tint::bold:
      code = "1";
      break;
    case Tint::accent:
      code = "36";
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string amount_text(std::uint64_t micros) {
  constexpr std::uint64_t kMillion = 1'000'000;
  std::string part = fmt::format(".{:06}", micros % kMillion);
  part.resize(part.find_last_not_of("0.") + 1);
  return fmt::format("{}{}", micros / kMillion, part);
}

Tint status_tint(std::string_view status) {
  if (status == "completed") return Tint::good;
  if (status == "failed" || status == "cancelled") return Tint::bad;
  if (status == "waiting" || status == "parked") return Tint::warn;
  if (status == "running") return Tint::accent;
  return Tint::none;
}

std::string Line::text(const Paint& paint, std::size_t width) const {
  std::size_t left = width;
  std::vector<std::pair<Tint, std::string>> shown;
  for (const auto& [tint, raw] : pieces_) {
    const std::string whole = safe(raw);
    const std::string fits = width == 0 ? whole : cut(raw, left);
    left -= std::min(left, width_of(fits));
    if (!fits.empty()) shown.emplace_back(tint, fits);
    if (fits != whole) break;
  }
  while (!shown.empty()) {
    std::string& last = shown.back().second;
    last.erase(last.find_last_not_of(' ') + 1);
    if (!last.empty()) break;
    shown.pop_back();
  }
  std::string out;
  for (const auto& [tint, piece] : shown) out += paint(tint, piece);
  return out;
}

std::string Table::text(const Paint& paint, std::size_t width) const {
  std::vector<std::size_t> wide;
  wide.reserve(head_.size());
  for (const std::string& title : head_) wide.push_back(width_of(title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      wide[i] = std::max(wide[i], width_of(safe(row[i].text)));
    }
  }
  // On a narrow terminal trailing columns are omitted: wrapped lines are unreadable.
  std::size_t before_last = 0, count = 0;
  for (std::size_t end = 0; count < wide.size(); ++count) {
    const bool last = count + 1 == wide.size();
    const std::size_t least = last ? std::min<std::size_t>(wide[count], 8) : wide[count];
    if (width > 0 && count > 0 && end + least > width) break;
    before_last = end;
    end += wide[count] + 2;
  }
  std::string out;
  const auto put = [&](std::size_t i, const std::string& raw, Tint tint) {
    const bool last = i + 1 == count;
    const std::string shown =
        i + 1 == wide.size() && width > before_last ? cut(raw, width - before_last) : safe(raw);
    out += paint(tint, shown);
    if (!last) out.append(wide[i] - width_of(shown) + 2, ' ');
  };
  for (std::size_t i = 0; i < count; ++i) put(i, head_[i], Tint::dim);
  out += '\n';
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < std::min(row.size(), count); ++i) put(i, row[i].text, row[i].tint);
    while (out.ends_with(' ')) out.pop_back();
    out += '\n';
  }
  return out;
}

}  // namespace ae::cli

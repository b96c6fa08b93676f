// The names of the error codes, and the message of a failed check.
#include "base/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace ae {
namespace {

constexpr auto kCodeNames = std::to_array<std::string_view>({
#define X(name) #name,
    AE_ERROR_CODES(X)
#undef X
});

}  // namespace

std::string_view code_name(Code code) { return kCodeNames.at(static_cast<std::size_t>(code)); }

std::optional<Code> code_from_name(std::string_view name) {
  const auto found = std::ranges::find(kCodeNames, name);
  if (found == kCodeNames.end()) return std::nullopt;
  return static_cast<Code>(found - kCodeNames.begin());
}

Error&& Error::with_context(std::string_view context) && {
  message = fmt::format("{}: {}", context, message);
  return std::move(*this);
}

void check_failed(const char* file, int line, const char* what, std::string_view detail) {
  std::fprintf(stderr, "aetheris: a check failed at %s:%d: %s%s%.*s\n", file, line, what,
               detail.empty() ? "" : ": ", static_cast<int>(detail.size()), detail.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace ae

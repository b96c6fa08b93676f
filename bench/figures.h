// Figures: the results of a measurement, one row per line of JSON on stdout; bench/run.py makes
// tables of them.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

namespace ae::bench {

using Figures = std::vector<std::pair<std::string_view, double>>;

inline void print_row(std::string_view row, const Figures& figures) {
  std::printf("{\"row\":\"%.*s\"", static_cast<int>(row.size()), row.data());
  for (const auto& [name, value] : figures) {
    std::printf(",\"%.*s\":%.7g", static_cast<int>(name.size()), name.data(), value);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

inline double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

}  // namespace ae::bench

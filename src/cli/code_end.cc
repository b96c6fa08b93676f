#include "cli/code_end.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/phrases.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"

namespace ae::cli {
namespace {

constexpr std::string_view kOfCode[] = {"non_determinism", "routine_failed", "routine_stalled"};

}  // namespace

bool is_parked_by_code(const Value& parked) {
  const auto* const found = std::ranges::find(kOfCode, parked.text(field::reason));
  return found != std::end(kOfCode) && parked.text(field::until) == park_until::kVersion;
}

std::vector<std::string> code_end_lines(const Value& job, const std::string& flag) {
  constexpr std::size_t kFramesShown = 4;
  std::vector<std::string> lines = exception_lines(job["exception"], kFramesShown);
  if (!lines.empty()) {
    lines.push_back(
        fmt::format("the whole stack: aetheris job {} --json{}", safe(job.text("id")), flag));
  }
  for (std::string& line : divergence_lines(job["divergence"])) lines.push_back(std::move(line));
  return lines;
}

NextCommand new_code_job(const Value& job, const std::string& file, const std::string& flag) {
  return {"new job", "A job of code cannot be retried. After fixing the cause, run: ",
          fmt::format("aetheris run {} {} --input {}{}", quoted(file),
                      quoted(std::string(job.text(field::agent))),
                      quoted(canonical(job[field::input])), flag),
          true};
}

}  // namespace ae::cli

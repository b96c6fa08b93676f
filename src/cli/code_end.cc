#include "cli/code_end.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"

namespace ae::cli {
namespace {

constexpr std::string_view kOfCode[] = {"non_determinism", "routine_failed", "routine_stalled"};

// "call of tool \"pay\" {…}", "wait (signal)".
std::string recorded_text(const Value& request) {
  std::string text;
  if (request["tool"].is_string()) {
    text = call_of(request.text("tool"));
  } else if (request["wait"].is_string()) {
    text = fmt::format("wait for {}", safe(request.text("wait")));
  } else {
    text = safe(request.text(field::kind));
  }
  if (!request[field::arguments].is_null()) {
    text += " " + safe_json(canonical(request[field::arguments]));
  }
  return text;
}

// A recorded request, or the recorded end of the code.
std::string recorded_text_of(const Value& divergence) {
  const Value& recorded = divergence["recorded"];
  if (divergence.text("finding") != field::result) return recorded_text(recorded);
  if (recorded["failure"].is_object()) {
    return fmt::format("failure {}", safe(recorded["failure"].text(field::code)));
  }
  return "result " + safe_json(canonical(recorded[field::result]));
}

std::string version_text(const Value& version) {
  return version.is_string() ? fmt::format(", version {}", safe(version.as_string())) : "";
}

std::string found_text(const Value& divergence) {
  const Value& found = divergence["found"];
  const std::string_view finding = divergence.text("finding");
  if (found["exception"].is_object()) {
    return fmt::format("an exception: {}", first_line(found["exception"].text("message")));
  }
  if (found["failure"].is_object()) {
    return fmt::format("a failure: {}", first_line(found["failure"].text("message")));
  }
  if (finding == field::result) {
    if (!found.is_object()) return "it does not end";
    if (found[field::position].is_string()) {
      return fmt::format("it does not end; it requests {}", safe(found.text(field::position)));
    }
    return "result " + safe_json(canonical(found[field::result]));
  }
  if (!found.is_object()) return finding == "ended" ? "it returned" : "no request there";
  const bool other_arguments = found.text("tool") == divergence["recorded"].text("tool");
  return recorded_text(found) +
         (finding == field::arguments && other_arguments ? " with other arguments" : "");
}

}  // namespace

bool is_parked_by_code(const Value& parked) {
  const auto* const found = std::ranges::find(kOfCode, parked.text(field::reason));
  return found != std::end(kOfCode) && parked.text(field::until) == park_until::kVersion;
}

std::vector<std::string> exception_lines(const Value& exception, std::size_t frames) {
  std::vector<std::string> lines;
  if (!exception.is_object()) return lines;
  lines.push_back(fmt::format("{}: {}", safe(exception.text("name")),
                              message_text(exception.text("message"), "  ")));
  const std::string where = safe(exception.text("where"));
  const std::string version = version_text(exception[field::version]);
  if (!where.empty() || !version.empty()) {
    lines.push_back(fmt::format("  at {}{}", where.empty() ? "an unknown line" : where, version));
  }
  const std::vector<std::string> stack = message_lines(exception.text("stack"));
  std::size_t shown = 0;
  for (const std::string& line : stack) {
    // The first line of Node repeats name and message, and `where` is one of the others.
    const bool is_frame = line.starts_with("at ") || line.starts_with("File ") ||
                          line.starts_with("    at ") || line.starts_with("  File ");
    if (!is_frame || (!where.empty() && line.find(where) != line.npos)) continue;
    if (frames > 0 && shown == frames) {
      lines.emplace_back("  …");
      break;
    }
    const std::size_t from = line.find_first_not_of(' ');
    lines.push_back("  " + line.substr(from));
    ++shown;
  }
  return lines;
}

std::vector<std::string> divergence_lines(const Value& divergence) {
  std::vector<std::string> lines;
  if (!divergence.is_object()) return lines;
  const Value& recorded = divergence["recorded"];
  const Value& delivered = divergence[field::delivered];
  lines.push_back(fmt::format(
      "{} of node {}, after {}",
      divergence[field::position].is_string()
          ? fmt::format("position {}", safe(divergence.text(field::position)))
          : "the end",
      safe(divergence.text(field::node_id)),
      counted(static_cast<std::uint64_t>(delivered.is_integer() ? delivered.as_int() : 0),
              field::outcome)));
  const std::string where = safe(divergence.text("where"));
  if (!where.empty()) lines.push_back(fmt::format("  at {}", where));
  if (recorded.is_object()) {
    const std::string event =
        recorded["seq"].is_integer() ? fmt::format(", event {}", recorded["seq"].as_int()) : "";
    lines.push_back(fmt::format("  recorded: {}{}{}", recorded_text_of(divergence), event,
                                version_text(recorded[field::version])));
  }
  lines.push_back(fmt::format("  code:     {}{}", found_text(divergence),
                              version_text(divergence[field::version])));
  std::string pointers;
  for (const Value& pointer : divergence["pointers"].items()) {
    const std::string& path = pointer.as_string();
    pointers += fmt::format("{}{}", pointers.empty() ? " (" : ", ",
                            path.empty() ? "the arguments" : safe(path));
  }
  if (!pointers.empty()) pointers += ")";
  lines.push_back(fmt::format("  likely:   {}{}", safe(divergence.text("likely")), pointers));
  return lines;
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

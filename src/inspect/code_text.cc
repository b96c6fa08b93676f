#include "inspect/code_text.h"

#include <fmt/core.h>

#include <cstdint>
#include <string_view>

#include "base/counted.h"
#include "base/escape_hidden.h"
#include "base/message_text.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae {
namespace {

// "call of tool \"pay\" {…}", "wait (signal)".
std::string recorded_text(const Value& request) {
  std::string text;
  if (request["tool"].is_string()) {
    text = fmt::format("call of tool \"{}\"", escape_hidden(request.text("tool")));
  } else if (request["wait"].is_string()) {
    text = fmt::format("wait for {}", escape_hidden(request.text("wait")));
  } else {
    text = escape_hidden(request.text(field::kind));
  }
  if (!request[field::arguments].is_null()) {
    text += " " + escape_hidden_json(canonical(request[field::arguments]));
  }
  return text;
}

// A recorded request, or the recorded end of the code.
std::string recorded_text_of(const Value& divergence) {
  const Value& recorded = divergence["recorded"];
  if (divergence.text("finding") != field::result) return recorded_text(recorded);
  if (recorded["failure"].is_object()) {
    return fmt::format("failure {}", escape_hidden(recorded["failure"].text(field::code)));
  }
  return "result " + escape_hidden_json(canonical(recorded[field::result]));
}

std::string version_text(const Value& version) {
  return version.is_string() ? fmt::format(", version {}", escape_hidden(version.as_string())) : "";
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
      return fmt::format("it does not end; it requests {}",
                         escape_hidden(found.text(field::position)));
    }
    return "result " + escape_hidden_json(canonical(found[field::result]));
  }
  if (!found.is_object()) return finding == "ended" ? "it returned" : "no request there";
  const bool other_arguments = found.text("tool") == divergence["recorded"].text("tool");
  return recorded_text(found) +
         (finding == field::arguments && other_arguments ? " with other arguments" : "");
}

}  // namespace

std::vector<std::string> exception_lines(const Value& exception, std::size_t frames) {
  std::vector<std::string> lines;
  if (!exception.is_object()) return lines;
  lines.push_back(fmt::format("{}: {}", escape_hidden(exception.text("name")),
                              message_text(exception.text("message"), "  ")));
  const std::string where = escape_hidden(exception.text("where"));
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
          ? fmt::format("position {}", escape_hidden(divergence.text(field::position)))
          : "the end",
      escape_hidden(divergence.text(field::node_id)),
      counted(static_cast<std::uint64_t>(delivered.is_integer() ? delivered.as_int() : 0),
              field::outcome)));
  const std::string where = escape_hidden(divergence.text("where"));
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
                            path.empty() ? "the arguments" : escape_hidden(path));
  }
  if (!pointers.empty()) pointers += ")";
  lines.push_back(
      fmt::format("  likely:   {}{}", escape_hidden(divergence.text("likely")), pointers));
  return lines;
}

}  // namespace ae

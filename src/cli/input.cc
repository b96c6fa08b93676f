// The input of `run`: --input, --message and KEY=VALUE.
#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/run_options.h"
#include "cli/shared.h"
#include "json/json.h"

namespace ae::cli {
namespace {

constexpr std::size_t kWordShown = 80;  // bytes of an argument, in errors

// KEY=TEXT or KEY:=JSON.
Result<Member> member_of(const std::string& word) {
  const std::size_t at = word.find('=');
  const bool json = at != word.npos && at > 0 && word[at - 1] == ':';
  const std::string key = word.substr(0, json ? at - 1 : at);
  if (at == word.npos || key.empty()) {
    return fail(Code::usage, "expected KEY=VALUE or KEY:=JSON, not \"{}\"", cut(word, kWordShown));
  }
  const std::string text = word.substr(at + 1);
  if (!json) return Member(key, text);
  AE_ASSIGN(Value value, json_argument(text, fmt::format("{}:=", cut(key, kWordShown))));
  return Member(key, std::move(value));
}

}  // namespace

Result<std::optional<Value>> input_of(const InputOptions& options) {
  if (!options.input && !options.message && options.pairs.empty()) return std::nullopt;
  std::vector<Member> members;
  for (const std::string& word : options.pairs) {
    AE_ASSIGN(Member member, member_of(word));
    members.push_back(std::move(member));
  }
  Value input = Value::object({});
  if (options.input) {
    AE_ASSIGN(input, json_argument(*options.input, "--input"));
  }
  if (!options.message && options.pairs.empty()) return input;
  if (!input.is_object()) {
    return fail(Code::usage, "--input is not an object: {} adds a member to it",
                options.message ? "--message" : "KEY=VALUE");
  }
  const auto add = [&](const std::string& key, Value value, const std::string& from) -> Status {
    if (input.find(key) != nullptr) {
      return fail(Code::usage, "{}: the input has the member \"{}\" already", from,
                  cut(key, kWordShown));
    }
    input = input.with(key, std::move(value));
    return {};
  };
  for (std::size_t i = 0; i < members.size(); ++i) {
    AE_TRY(add(members[i].first, std::move(members[i].second), cut(options.pairs[i], kWordShown)));
  }
  if (options.message) AE_TRY(add("message", *options.message, "--message"));
  return input;
}

}  // namespace ae::cli

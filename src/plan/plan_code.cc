// Reads nodes of kind code: which function runs, and which tools it may call.
#include <algorithm>

#include "log/field_names.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr std::size_t kCodeToolsMax = 4'096;
constexpr std::size_t kVersionMax = 128;  // bytes

// Absent = "". An empty one is left out.
Result<std::string> text_or_absent_at(const Value& object, std::string_view key) {
  AE_ASSIGN(std::string text, optional_text_at(object, key));
  if (text.empty() && object.find(key) != nullptr) {
    return fail(Code::plan_invalid, "`{}` must not be empty", key);
  }
  return text;
}

Status read_tools(const Value& names, const ToolsByName& tool_by_name, CodeSpec& code) {
  if (!names.is_array()) return fail(Code::plan_invalid, "`tools` must be a list");
  if (names.size() > kCodeToolsMax) {
    return fail(Code::plan_invalid, "code may call at most 4,096 tools");
  }
  for (const Value& name : names.items()) {
    const auto found = tool_by_name.find(name.is_string() ? name.as_string() : "");
    if (found == tool_by_name.end()) {
      return fail(Code::plan_invalid, "`tools` names a tool that is not in the plan");
    }
    code.tools.push_back(found->second);
  }
  std::ranges::sort(code.tools);
  if (std::ranges::adjacent_find(code.tools) != code.tools.end()) {
    return fail(Code::plan_invalid, "`tools` names a tool twice");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const CodeSpec>> read_code(const Value& value, const Plan&,
                                                  const ToolsByName& tool_by_name) {
  AE_TRY(only_keys(value, {field::agent, field::version, "digest", "language", "parallel",
                           "on_exception", "output_schema", "tools"}));
  auto code = std::make_shared<CodeSpec>();
  AE_ASSIGN(code->agent, text_at(value, field::agent));
  if (!is_name(code->agent)) return fail(Code::plan_invalid, "`agent` is not a name");
  AE_ASSIGN(code->language, text_at(value, "language"));
  AE_ASSIGN(code->version, text_or_absent_at(value, field::version));
  if (code->version.size() > kVersionMax) {
    return fail(Code::plan_invalid, "`version` has at most 128 bytes");
  }
  AE_ASSIGN(code->digest, text_or_absent_at(value, "digest"));
  if (!code->digest.empty() && !hash_from_hex(code->digest)) {
    return fail(Code::plan_invalid, "`digest` must be 64 hex digits");
  }
  if (value.find("parallel") != nullptr) {
    AE_ASSIGN(code->parallel, count_at(value, "parallel", kCodeParallelMax));
  }
  AE_ASSIGN(const std::size_t on_exception, word_at(value, "on_exception", {"park", "fail"}));
  code->fail_on_exception = on_exception == 1;
  if (const Value* schema = value.find("output_schema")) {
    auto compiled = Schema::compile(*schema);
    if (!compiled)
      return std::unexpected(std::move(compiled).error().with_context("`output_schema`"));
    code->output_schema = *std::move(compiled);
  }
  AE_TRY(read_tools(value["tools"], tool_by_name, *code));
  return std::shared_ptr<const CodeSpec>(std::move(code));
}

}  // namespace ae::engine

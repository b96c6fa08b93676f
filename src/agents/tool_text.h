// ToolText: the strings of a tool in the form its transport needs: env. replaced,
// expressions and secrets checked.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "agents/check_context.h"

namespace ae::agents {

// Whether the text may contain `secret:NAME`.
enum class Secrets { replaced, refused };

class ToolText {
 public:
  // `root`: the only root that its expressions read; "" = .args and .call.
  explicit ToolText(CheckContext& check, std::string_view root = "") : check_(check), root_(root) {}

  // Replaces every ${ env.NAME }; other expressions read .args and .call, or `root`.
  std::optional<std::string> resolved(const SourceNode& source_node, Secrets secrets);
  // The same for every string in the value; no secrets.
  std::optional<Value> resolved_value(const SourceNode& source_node) {
    return below(source_node, 0);
  }
  // The same for a text whose only expressions are env.; the result is plain text.
  std::optional<std::string> literal(const SourceNode& source_node,
                                     Secrets secrets = Secrets::refused);
  // Checks a resolved URL: scheme, host and port must be literal, so that models and external data
  // cannot choose the host.
  void url(const SourceNode& source_node, const std::string& text);

 private:
  bool env(const SourceNode& source_node, std::size_t at, std::string_view name, char next,
           std::string& out);
  std::optional<std::string> checked(const SourceNode& source_node, std::string text,
                                     bool replaced);
  std::optional<Value> below(const SourceNode& source_node, std::size_t depth);

  CheckContext& check_;
  std::string_view root_;
};

// A token of RFC 9110, at most 128 characters.
bool is_header_name(std::string_view text);
// Letters, digits and _, at most 128.
bool is_env_name(std::string_view text);

}  // namespace ae::agents

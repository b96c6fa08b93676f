// ToolText: the texts of a tool as its transport gets them: env. replaced, expressions and secrets checked.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "agents/check_context.h"

namespace ae::agents {

// May `secret:NAME` stand in this text?
enum class Secrets { replaced, refused };

class ToolText {
 public:
  // `root`: the one root that its expressions read; "" = .args and .call.
  explicit ToolText(CheckContext& check, std::string_view root = "") : check_(check), root_(root) {}

  // The text with every ${ env.NAME } replaced; its other expressions read .args and .call, or `root`.
  std::optional<std::string> resolved(const SourceNode& source_node, Secrets secrets);
  // The same for every string below; no secrets.
  std::optional<Value> resolved_value(const SourceNode& source_node) {
    return below(source_node, 0);
  }
  // The same for a text that holds no expression but env.; it is plain text then.
  std::optional<std::string> literal(const SourceNode& source_node,
                                     Secrets secrets = Secrets::refused);
  // A resolved url: scheme, host and port are literal, so that what a model or a stranger says cannot choose whom we
  // talk to.
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

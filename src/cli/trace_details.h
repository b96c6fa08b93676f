// TraceDetails: the lines below a step of a trace: its effect, model, changes, tries, decisions and
// waits.
//
// Threads: one. Borrows the trace, the style and the text that it appends to.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/text.h"
#include "cli/trace_text.h"
#include "json/value.h"

namespace ae::cli {

struct StatusMark {
  const char* sign;
  Tint tint;
};
// Of a step.
StatusMark mark_of(std::string_view status);

constexpr std::size_t kTraceKeyShown = 12;    // digits of a key: enough to identify a call
constexpr std::size_t kTracePartsShown = 10;  // of a map, a loop or code, if they succeeded

class TraceDetails {
 public:
  TraceDetails(const Value& trace, const TraceStyle& style, std::string& out);

  // An attempt ended without a release: its process died, or lost its claim.
  bool has_lost_attempt() const { return lost_; }
  // Each line begins with `trunk`.
  void details(const Value& node, const std::string& status, const std::string& trunk);
  // Errors are wrapped at blanks, never cut.
  void wrapped(const std::string& trunk, const std::string& code, std::string_view message);
  // Never cut: made to be copied.
  void command(const std::string& trunk, const std::string& how, const std::string& words);
  // The status text of a step, unless it is simply done.
  std::string word_of(const Value& node, const std::string& status) const;
  // The cost, if the agents file has prices.
  static std::string cost_of(const Value& usage);

 private:
  bool fits(std::size_t columns) const { return style_.width == 0 || columns <= style_.width; }
  void put(const Line& line) { out_ += line.text(style_.paint, style_.width) + "\n"; }
  bool replayed(const Value& node) const;
  std::string why_of(const Value& node, const std::string& status) const;
  void detail(const std::string& trunk, Tint tint, const std::string& text);
  void code(const Value& node, const std::string& trunk);
  static std::string difference(const Value& node, const Value& diverged);
  void put_side_call(const Value& side, const char* what, const std::string& trunk);
  static std::span<const Value> shown_tries(const Value& node);
  void put_tries(const Value& node, const std::string& trunk);
  void child(const Value& child, const std::string& trunk);
  void wrapped_line(const std::string& trunk, const std::string& code, std::string rest);
  void applied_items(const Value& node, const std::string& trunk);
  void effect(const Value& node, const std::string& trunk);
  void model(const Value& model, const std::string& trunk);
  std::string attempt_of(std::string_view id) const;
  void put_try(const Value& one, const std::string& trunk);
  void change(const Value& change, const std::string& trunk);
  void decision(const Value& decision, const std::string& trunk);
  static std::string decided(std::string_view kind, std::string_view state);
  void put_choice(const Value& choice, const std::string& trunk);
  static std::string_view last_error(const Value& node);
  void wait(const Value& node, const Value& wait, const std::string& trunk);

  const Value& trace_;
  const TraceStyle& style_;
  std::string& out_;
  bool lost_ = false;
};

}  // namespace ae::cli

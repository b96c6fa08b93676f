// TranscriptText: a job's transcript (GET /api/jobs/{id}/transcript) as text, entry by entry.
//
// Remembers the node of the last entry, and the effect of each call. Threads: a value; one owner.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "cli/text.h"
#include "json/value.h"

namespace ae::cli {

struct TranscriptStyle {
  Paint paint = Paint(false);
  std::size_t value_max = 0;  // maximum columns of a value; 0 = unlimited
};

class TranscriptText {
 public:
  explicit TranscriptText(TranscriptStyle style) : style_(style) {}

  // "job a1 · agent helper · completed · 3 answers · 1,204 tokens · cost 0.0041". REQUIRES: the
  // body of the route.
  std::string head(const Value& transcript) const;
  // The lines of one entry; "" = none.
  std::string entry(const Value& entry);
  // Was a value cut?
  bool cut() const { return was_cut_; }

 private:
  std::string heading(const Value& entry);
  // One function per kind of entry.
  std::string input(const Value& entry);
  std::string plan(const Value& entry);
  std::string message(const Value& entry);
  std::string answer(const Value& entry);
  std::string tool_call(const Value& entry);
  std::string result(const Value& entry);
  std::string approval(const Value& entry);
  std::string question(const Value& entry);
  std::string wait(const Value& entry);
  std::string reply(const Value& entry);
  std::string resolution(const Value& entry);
  std::string received(const Value& entry);
  std::string budget(const Value& entry);
  std::string emitted(const Value& entry);
  std::string skipped(const Value& entry);
  std::string failed(const Value& entry);
  std::string end(const Value& entry);

  std::string answer_head(const Value& entry) const;
  std::string outcome(const Value& entry, bool changes);
  // "[name] "
  std::string tag(std::string_view name) const;
  // " " and the value, if the entry has it or had it before redaction.
  std::string shown_if(const Value& entry, std::string_view name);
  // A string with its lines indented, another value as JSON; "(redacted)" if erased.
  std::string shown(const Value& value, const Value& entry, std::string_view name);
  std::string clip(std::string text);

  const TranscriptStyle style_;
  std::string location_;
  std::map<std::string, std::string, std::less<>> effects_;  // by step
  bool was_cut_ = false;
};

}  // namespace ae::cli

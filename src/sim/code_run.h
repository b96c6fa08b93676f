// CodeRun: one run of a CodeProgram, as a function of the outcomes that it is given. It makes the
// requests of its record again, and then new ones.
//
// The next request and the result depend on all outcomes and on their order. Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/code/replay.h"
#include "plan/plan.h"
#include "sim/code_program.h"

namespace ae::sim {

struct CodeRunSetup {
  std::shared_ptr<const engine::Plan> plan;
  std::uint32_t node = 0;
  Value input;
  std::string blind;
  bool is_blind_erased = false;
  Instant now;  // of the values that it draws
};

class CodeRun {
 public:
  CodeRun(CodeRunSetup setup, engine::CodeRecord record);

  // Replays the record to the frontier. False: it diverged.
  bool replay();
  const std::optional<Divergence>& divergence() const { return divergence_; }
  // An outcome after the frontier.
  void deliver(const engine::Delivery& outcome);
  // The result of a scope whose requests all have outcomes. False: there is none.
  bool end_scope();
  bool has_ended_scope() const { return ended_scope_.has_value(); }
  // Has this request been made, and has it no outcome?
  bool is_open(std::string_view position) const { return open_.contains(position); }
  std::uint64_t delivered() const { return replay_.delivered(); }

  // What it did since the frontier. The owner takes it.
  engine::Advance recorded;
  std::vector<engine::NewRequest> requests;
  std::vector<std::string> cancelled;
  std::optional<engine::RoutineEnd> end;

 private:
  void run();
  void enter(const CodeGroup& group);
  bool is_done(const CodeGroup& group) const;
  void leave(const CodeGroup& group);
  void begin(const CodeItem& item, const std::string& scope);
  void request(engine::NewRequest next, std::string_view tool);
  void value(std::string_view kind, const std::string& scope);
  void complete(const engine::Delivery& outcome);
  static void mix(std::string& variable, std::string_view with);
  void check_scope();
  std::string position_of(const CodeGroup& group, const CodeItem& item) const;

  CodeRunSetup setup_;
  CodeProgram program_;
  std::set<std::string> ended_scopes_;  // of the record
  engine::Replay replay_;
  std::optional<Divergence> divergence_;
  std::size_t at_ = 0;  // group
  bool is_entered_ = false;
  std::string x_, local_;  // `local_`: of the scope
  std::optional<std::string> scope_, ended_scope_;
  std::map<std::string, std::uint64_t> counts_;  // values, by kind and scope
  std::set<std::string, std::less<>> open_, done_;
  std::optional<engine::Failure> failure_;        // ends the code
  std::set<std::string, std::less<>> ends_code_;  // positions
};

}  // namespace ae::sim

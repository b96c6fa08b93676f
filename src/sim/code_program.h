// CodeProgram: the code of the simulated code agents. The name of an agent selects its program:
// "program-17" is drawn from this number, others are those of the sweep.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/routine.h"
#include "json/value.h"

namespace ae::sim {

struct CodeItem {
  enum class Kind : std::uint8_t { call, wait, time, uuid, emit };
  Kind kind = Kind::call;
  std::string name;
  std::string tool;         // of a call
  std::vector<Value> fate;  // of a call: its outcomes; empty: they are drawn
  engine::NewWait wait;     // of a wait
  bool ends_code = false;   // a failure of it is the end of the code
};

// What the code does at once. It goes on when all of it is done; `is_race`: when one of it is.
struct CodeGroup {
  std::vector<CodeItem> items;
  std::string scope;  // "" = none: a closed scope around the items
  bool is_race = false;
};

struct CodeProgram {
  std::vector<CodeGroup> groups;
};

CodeProgram code_program(std::string_view agent);
// A task graph of one code node with the program of this agent.
Value code_graph(std::string_view agent);

}  // namespace ae::sim

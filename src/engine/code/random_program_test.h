// Random programs of code, by seed.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fixtures/dice_test.h"
#include "engine/heart/routine.h"

namespace ae::engine::testing {

using namespace std::chrono_literals;

enum class Act : std::uint8_t {
  request,
  wait,
  cancel,
  value,
  patch,
  emit,
  all,
  race,
  scope,
  outside,
  loop
};

struct Statement {
  Act act = Act::request;
  std::string name, tool;
  NewWait wait;
  bool draws_uuid = false;
  bool cancels_call = false;                   // instead of a wait
  bool changes_x = true;                       // its result does
  std::vector<std::vector<Statement>> blocks;  // branches, or the body of a scope or of a loop
  std::uint64_t turns = 0;                     // of a loop
};
using Block = std::vector<Statement>;

struct RandomProgram {
  Block block;
  // A replay may make its requests late. Then names are unique, and only outcomes change x.
  bool is_delayed = false;
  std::uint32_t requests = 0;
};

class ProgramMaker {
 public:
  ProgramMaker(Dice& dice, RandomProgram& program) : dice_(dice), program_(program) {}

  Block block(std::uint32_t depth, bool inside_scope) {
    Block block;
    for (std::uint64_t n = 1 + dice_.below(3); n > 0 && program_.requests < 14; --n) {
      block.push_back(statement(depth, inside_scope));
    }
    return block;
  }

 private:
  Statement statement(std::uint32_t depth, bool inside_scope) {
    Statement made;
    const std::uint64_t kind = dice_.below(depth == 0 ? 12 : 20);
    if (kind < 7) {
      constexpr const char* kTools[] = {
          "run:read", "run:idempotent", "run:idempotent", "look", "put", "put", "run:at_most_once"};
      made.tool = kTools[kind];
      name(made, "call");
      if (dice_.one_in(5)) {
        made.act = Act::cancel;
        made.wait.type = dice_.one_in(2) ? WaitType::signal : WaitType::human;
        made.cancels_call = dice_.one_in(2);
      }
    } else if (kind == 7) {
      made.act = Act::wait;
      name(made, "wait");
      constexpr WaitType kTypes[] = {WaitType::signal, WaitType::human, WaitType::timer,
                                     WaitType::message};
      made.wait.type = kTypes[dice_.below(4)];
      if (made.wait.type == WaitType::timer) made.wait.lasts = 20s;
      if (made.wait.type == WaitType::message) made.wait.channel = "c";
      if (made.wait.type == WaitType::human && dice_.one_in(2)) made.wait.expires = 60s;
    } else if (kind == 8) {
      made.act = Act::value;
      made.name = program_.is_delayed ? fmt::format("v{}", ++values_) : "v";
      made.draws_uuid = dice_.one_in(2);
      made.changes_x = !program_.is_delayed;
    } else if (kind == 9) {
      made.act = Act::patch;
      made.name = fmt::format("p{}", dice_.below(3));
      made.changes_x = !program_.is_delayed;
    } else if (kind == 10 || (kind == 11 && (!inside_scope || program_.is_delayed))) {
      made.act = Act::emit;
      made.name = fmt::format("e{}", ++values_);
      made.changes_x = false;
    } else if (kind == 11) {
      made.act = Act::outside;
    } else if (kind < 16) {
      made.changes_x = !program_.is_delayed;
      made.act = kind < 14 ? Act::all : Act::race;
      for (std::uint64_t n = 2 + dice_.below(2); n > 0; --n) {
        made.blocks.push_back(block(depth - 1, inside_scope));
      }
    } else {
      made.act = kind < 18 ? Act::scope : Act::loop;
      made.name = fmt::format("{}/{}", kind < 18 ? "scope" : "loop", ++scopes_);
      made.turns = 1 + dice_.below(3);
      made.blocks.push_back(block(depth - 1, true));
    }
    return made;
  }
  void name(Statement& made, std::string_view kind) {
    program_.requests++;
    made.name = program_.is_delayed ? fmt::format("{}{}", kind, program_.requests)
                                    : fmt::format("{}{}", kind, dice_.below(2));
  }

  Dice& dice_;
  RandomProgram& program_;
  std::uint32_t scopes_ = 0, values_ = 0;
};

inline RandomProgram random_program(Dice& dice) {
  RandomProgram program;
  program.is_delayed = dice.one_in(2);
  program.block = ProgramMaker(dice, program).block(3, false);
  return program;
}

}  // namespace ae::engine::testing

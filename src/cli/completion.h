// Completion: shell completion scripts, generated from the command line's grammar.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ae::cli {

// One command of the grammar.
struct OptionShape {
  std::vector<std::string> names;  // "-f", "--follow"
  std::string what;
  bool takes_value = false;
  std::vector<std::string> choices;  // of the value; empty = anything
};
struct CommandShape {
  std::string name, what;
  std::vector<OptionShape> options;
  bool takes_files = false;          // a positional argument is a file
  std::vector<std::string> choices;  // of its first positional argument
};
// The options before any command have the name "".
std::vector<CommandShape> command_shapes();

// A script for bash, zsh or fish.
std::string completion_script(std::string_view shell, const std::vector<CommandShape>& commands);

}  // namespace ae::cli

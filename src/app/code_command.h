// CodeCommand: how a file of code is run as a worker (docs/development.md).
//
//   .ts .mts .cts .js .mjs .cjs   node AETHERIS-WORKER FILE, of the package `aetheris` of npm
//   .py                           python3 -m aetheris FILE
//   an executable file            the file itself
//
// Threads: pure, but for reads of files and of the environment.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ae::app {

struct CodeCommand {
  std::string name;                // for messages: the file as it was given, or the program
  std::string file;                // "" = only a program
  std::vector<std::string> words;  // the program and its arguments
  std::vector<std::pair<std::string, std::string>> environment = {};  // as in CodeProcess::Launch
};

// By its name: .yaml .yml .json
bool is_agents_file(const std::string& path);
// By its name: a file for Node.js or Python.
bool has_code_extension(const std::string& path);
// By its name, or an executable file that is not named as an agents file.
bool is_code_file(const std::string& path);
// Fails with usage: no such file, unknown kind of file, the SDK or its program is not installed.
Result<CodeCommand> code_command(const std::string& path);
// REQUIRES: not empty.
CodeCommand code_command_of(std::vector<std::string> words);
// The same under a debugger, which listens on 127.0.0.1 and waits for a client before the file is
// loaded. Fails with usage: the file is not one of Node or Python.
Result<CodeCommand> debugged(CodeCommand command);
// The address in a line of such a worker: "ws://127.0.0.1:9229/…", "127.0.0.1:4000"; "" = none.
std::string debugger_address(std::string_view line);
// What a user can do, if these lines of a worker that did not start show a known cause; else "".
std::string start_hint(const CodeCommand& command, std::string_view output);

}  // namespace ae::app

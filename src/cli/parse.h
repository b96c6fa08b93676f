// The command line parsed by the list of commands.
//
// Threads: values.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/command.h"

namespace ae::cli {

// The result of parsing.
struct Parsed {
  const Command* command = nullptr;               // run this command, …
  std::unique_ptr<BoundCommand> bound = nullptr;  // … with these options
  int code = 0;                                   // or exit with this code, …
  std::string output = {};                        // … after this text, the help, on stdout
  std::optional<Error> error = {};                // or print this error (usage, unsupported)
  std::string usage = {};  // … and this line: "usage: aetheris retry [OPTIONS] ID [FILE]"
  bool json = false;       // print the error as JSON
};
Parsed parse(int argc, char** argv);

}  // namespace ae::cli

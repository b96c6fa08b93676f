// completion: prints a completion script for bash, zsh or fish, generated from the list of
// commands.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace ae::cli {
namespace {

struct CompletionOptions : CommonOptions {
  std::string shell;
};

std::vector<Option> completion_options(CompletionOptions& o) {
  return {{"SHELL",
           "",
           &o.shell,
           "bash, zsh or fish",
           {.is_required = true, .choices = {"bash", "zsh", "fish"}}}};
}

struct OptionShape {
  std::vector<std::string> names;  // "-f", "--follow"
  std::string meaning;
  bool takes_value = false;
  std::vector<std::string> choices = {};  // offered for the value
};
// A command, without the texts that completion does not use.
struct CommandShape {
  std::string name, summary;
  std::vector<OptionShape> options = {};
  bool takes_files = false;               // an argument is a file
  std::vector<std::string> choices = {};  // of the first argument that has choices
};

const std::vector<std::string>& offered_values(const Option& option) {
  return option.rules.choices.empty() ? option.rules.words : option.rules.choices;
}

OptionShape shape_of(const Option& option) {
  OptionShape shape{.names = {},
                    .meaning = option.meaning,
                    .takes_value = !option.is_flag(),
                    .choices = offered_values(option)};
  for (std::size_t from = 0; from <= option.names.size();) {
    const std::size_t end = std::min(option.names.find(',', from), option.names.size());
    shape.names.push_back(option.names.substr(from, end - from));
    from = end + 1;
  }
  return shape;
}

void add_options(CommandShape& shape, const std::vector<Option>& options) {
  for (const Option& option : options) {
    if (!option.is_argument()) {
      shape.options.push_back(shape_of(option));
      continue;
    }
    shape.takes_files = shape.takes_files || option.names == "FILE" || option.names == "DIR";
    if (shape.choices.empty()) shape.choices = option.rules.choices;
  }
}

// The options before any command have the name "".
std::vector<CommandShape> command_shapes() {
  const OptionShape help{{"-h", "--help"}, "Print this help message and exit"};
  const OptionShape version{{"--version"}, "Display program version information and exit"};
  CommonOptions common;
  std::vector<CommandShape> shapes{{.name = "", .summary = "", .options = {help, version}}};
  add_options(shapes.front(), declare_common(common));
  for (const Command* command : commands()) {
    const auto bound = command->bind();
    CommandShape shape{.name = std::string(command->name),
                       .summary = std::string(command->summary),
                       .options = {help}};
    add_options(shape, bound->options());
    add_options(shape, declare_common(common));
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Single-quoted for all three shells.
std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<std::string> names_of(const CommandShape& command) {
  std::vector<std::string> names;
  for (const OptionShape& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<std::string> commands_of(const std::vector<CommandShape>& commands) {
  std::vector<std::string> names;
  for (const CommandShape& command : commands) {
    if (!command.name.empty()) names.push_back(command.name);
  }
  return names;
}

// Options with a value, as a shell pattern: a|b|c.
std::string with_value(const std::vector<CommandShape>& commands) {
  std::string pattern;
  for (const CommandShape& command : commands) {
    for (const OptionShape& option : command.options) {
      if (!option.takes_value) continue;
      for (const std::string& name : option.names) {
        if (fmt::format("|{}|", pattern).find(fmt::format("|{}|", name)) != std::string::npos)
          continue;
        pattern += (pattern.empty() ? "" : "|") + name;
      }
    }
  }
  return pattern;
}

std::string bash_script(const std::vector<CommandShape>& commands) {
  const std::string valued = with_value(commands);
  std::string s =
      "# bash completion for aetheris: source <(aetheris completion bash)\n"
      "_aetheris() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd='' i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      " +
      valued +
      ") ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) cmd=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $cmd:$prev in\n";
  for (const CommandShape& command : commands) {
    for (const OptionShape& option : command.options) {
      if (option.choices.empty()) continue;
      for (const std::string& name : option.names) {
        s += fmt::format("    {}:{}) COMPREPLY=($(compgen -W {} -- \"$cur\")); return ;;\n",
                         command.name, name, in_quotes(joined(option.choices)));
      }
    }
  }
  s += fmt::format(
      "  esac\n"
      "  case $prev in\n"
      "    {}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
      "  esac\n"
      "  local options='' words='' files=''\n"
      "  case $cmd in\n",
      valued);
  for (const CommandShape& command : commands) {
    const std::string words =
        command.name.empty() ? joined(commands_of(commands)) : joined(command.choices);
    s += fmt::format(
        "    {}) options={} words={} files={} ;;\n", command.name.empty() ? "''" : command.name,
        in_quotes(joined(names_of(command))), in_quotes(words), command.takes_files ? "1" : "''");
  }
  s += "  esac\n"
       "  if [[ $cur == -* ]]; then\n"
       "    COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
       "  elif [[ $files ]]; then\n"
       "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
       "  else\n"
       "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
       "  fi\n"
       "}\n"
       "complete -o filenames -F _aetheris aetheris\n";
  return s;
}

// Escaped for zsh's option specifications: [what].
std::string zsh_what(const std::string& what) {
  std::string out;
  for (const char c : what) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_script(const std::vector<CommandShape>& commands) {
  std::string s =
      "#compdef aetheris\n"
      "# zsh completion for aetheris: source <(aetheris completion zsh)\n"
      "_aetheris() {\n"
      "  local curcontext=$curcontext state line\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandShape& command : commands) {
    if (!command.name.empty()) {
      s += fmt::format("    {}\n",
                       in_quotes(fmt::format("{}:{}", command.name, zsh_what(command.summary))));
    }
  }
  s += fmt::format(
      "  )\n"
      "  local i cmd=''\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    case $words[i] in\n"
      "      {}) ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) cmd=$words[i]; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $cmd in\n",
      with_value(commands));
  for (const CommandShape& command : commands) {
    s += fmt::format("    {})\n      _arguments", command.name.empty() ? "''" : command.name);
    for (const OptionShape& option : command.options) {
      for (const std::string& name : option.names) {
        std::string spec = fmt::format("{}[{}]", name, zsh_what(option.meaning));
        if (option.takes_value) {
          spec += option.choices.empty() ? ":value:_files"
                                         : fmt::format(":value:({})", joined(option.choices));
        }
        s += fmt::format(" \\\n        {}", in_quotes(spec));
      }
    }
    if (command.name.empty()) {
      s += " \\\n        '1:command:{_describe command commands}'";
    } else if (command.takes_files) {
      s += " \\\n        '*:file:_files'";
    } else if (!command.choices.empty()) {
      s += fmt::format(" \\\n        {}",
                       in_quotes(fmt::format("2:value:({})", joined(command.choices))));
    }
    s += "\n      ;;\n";
  }
  s += "  esac\n"
       "}\n"
       "compdef _aetheris aetheris\n";
  return s;
}

std::string fish_script(const std::vector<CommandShape>& commands) {
  std::string s =
      "# fish completion for aetheris: aetheris completion fish | source\n"
      "complete -c aetheris -f\n";
  for (const CommandShape& command : commands) {
    if (command.name.empty()) continue;
    s += fmt::format("complete -c aetheris -n __fish_use_subcommand -a {} -d {}\n",
                     in_quotes(command.name), in_quotes(command.summary));
  }
  for (const CommandShape& command : commands) {
    const std::string when =
        command.name.empty() ? ""
                             : fmt::format(" -n '__fish_seen_subcommand_from {}'", command.name);
    if (command.takes_files) s += fmt::format("complete -c aetheris{} -F\n", when);
    if (!command.choices.empty()) {
      s += fmt::format("complete -c aetheris{} -a {}\n", when, in_quotes(joined(command.choices)));
    }
    for (const OptionShape& option : command.options) {
      s += fmt::format("complete -c aetheris{}", when);
      for (const std::string& name : option.names) {
        s += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2))
                                    : fmt::format(" -s {}", name.substr(1));
      }
      if (option.takes_value) {
        s += option.choices.empty() ? " -r"
                                    : fmt::format(" -x -a {}", in_quotes(joined(option.choices)));
      }
      s += fmt::format(" -d {}\n", in_quotes(option.meaning));
    }
  }
  return s;
}

int completion_command(const CompletionOptions& options, Terminal& terminal) {
  const std::vector<CommandShape> shapes = command_shapes();
  terminal.print(options.shell == "zsh"    ? zsh_script(shapes)
                 : options.shell == "fish" ? fish_script(shapes)
                                           : bash_script(shapes));
  return kDone;
}

}  // namespace

extern const Command kCompletionCommand{
    .name = "completion",
    .group = Group::maintain,
    .target = Target::nothing,
    .summary = "print a shell completion script",
    .example = "source <(aetheris completion bash)",
    .bind = bound_command<CompletionOptions, completion_options, completion_command>};

}  // namespace ae::cli

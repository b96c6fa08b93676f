// Parses a command line by the list of commands. The only file that uses CLI11.
#include "cli/parse.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <sstream>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "agents/agents_file.h"
#include "agents/diagnostics.h"
#include "app/instance.h"
#include "cli/commands.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

constexpr const char* kFooter =
    "\nGet started: aetheris init demo && cd demo && aetheris run agents.yaml name=Ada\n\n"
    "Exit codes: 0 done, 1 the job failed or was cancelled, 2 usage or invalid input, 3 not "
    "found,\n"
    "4 blocked (waiting, parked, outcome unknown), 5 conflict, 6 verification failed, 7 store "
    "unavailable.\n"
    "AETHERIS_STORE sets the default of --store. With AETHERIS_URL, commands send their requests "
    "to "
    "that server;\n"
    "the API key is in AETHERIS_API_KEY, or in the file that AETHERIS_API_KEY_FILE names.\n"
    "`aetheris COMMAND --help` and `aetheris help COMMAND` show details.";

constexpr std::string_view kFutureCommands[] = {"exec"};

struct FutureFlag {
  std::string_view command, flag;
};
constexpr FutureFlag kFutureFlags[] = {{"run", "--workers"}};

// The first argument that is not an option: the command. A --store before it is skipped with its
// value.
std::string_view command_of(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--store") {
      ++i;
    } else if (!word.starts_with('-')) {
      return word;
    }
  }
  return {};
}

std::optional<Error> unsupported_yet(int argc, char** argv) {
  const std::string_view command = command_of(argc, argv);
  if (std::ranges::find(kFutureCommands, command) != std::end(kFutureCommands)) {
    return Error{
        Code::unsupported,
        fmt::format(
            "`aetheris {}` comes with a later version; `aetheris --help` lists what there is",
            command)};
  }
  for (const FutureFlag& future : kFutureFlags) {
    if (future.command != command) continue;
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "--") break;
      if (word != future.flag && !word.starts_with(fmt::format("{}=", future.flag))) continue;
      return Error{Code::unsupported,
                   fmt::format("`{}` comes with a later version of Aetheris", future.flag)};
    }
  }
  return std::nullopt;
}

// What is wrong with a value; "" = nothing.
std::string fault_of(Accepts accepts, const std::string& text) {
  if (accepts == Accepts::not_empty && text.empty()) return "it must not be empty";
  if (accepts == Accepts::identifier && !agents::is_capability(text)) {
    return "1 to 64 of the characters A-Z a-z 0-9 . _ -";
  }
  return {};
}

// The commands as a grammar of the parser.
class Grammar {
 public:
  Grammar() {
    app_.require_subcommand(1);
    app_.failure_message(CLI::FailureMessage::simple);
    app_.get_formatter()->column_width(34);
    app_.get_formatter()->label("SUBCOMMAND", "COMMAND");
    app_.footer(kFooter);
    app_.set_version_flag("--version", fmt::format("aetheris {}", app::kVersion));
    app_.fallthrough();
    add_options(app_, declare_common(common_));
    for (const Command* one : commands()) add_command(*one);
  }

  CLI::App& app() { return app_; }
  // "usage: aetheris retry [OPTIONS] ID [FILE]"; of the program if `command` is not a command.
  std::string usage(const std::string& command) {
    const std::string help = find_command(command) != nullptr
                                 ? app_.get_subcommand(command)->help("aetheris")
                                 : app_.help();
    constexpr std::string_view kMark = "Usage: ";
    const std::size_t from = help.find(kMark) + kMark.size();
    return fmt::format("usage: {}", help.substr(from, help.find('\n', from) - from));
  }
  // The parsed command with its options. REQUIRES: the command line was parsed.
  std::unique_ptr<BoundCommand> take_bound(const Command& command) {
    for (const auto& store : stores_) store();
    std::unique_ptr<BoundCommand> bound = std::move(bound_.at(&command));
    bound->common() = common_;
    return bound;
  }

 private:
  void add_command(const Command& command) {
    CLI::App& sub = *app_.add_subcommand(std::string(command.name), std::string(command.summary));
    sub.group(std::string(group_title(command.group)));
    sub.fallthrough();
    sub.footer(
        fmt::format("\nWith every command: --store URL (or AETHERIS_STORE), --json\n\nExample: {}",
                    command.example));
    auto bound = command.bind();
    add_options(sub, bound->options());
    bound_.emplace(&command, std::move(bound));
  }

  void add_options(CLI::App& to, const std::vector<Option>& options) {
    for (const Option& option : options) add_option(to, option);
    for (const Option& option : options) {
      CLI::Option* const added = to.get_option(last_name(option.names));
      if (!option.rules.needs.empty()) added->needs(to.get_option(option.rules.needs));
      for (const std::string& other : option.rules.excludes) added->excludes(to.get_option(other));
    }
  }

  // "-f,--follow" → "--follow"
  static std::string last_name(const std::string& names) {
    return names.substr(names.rfind(',') + 1);
  }

  void add_option(CLI::App& to, const Option& option) {
    CLI::Option* const added = std::visit(
        [&](auto* field) {
          using Field = std::remove_pointer_t<decltype(field)>;
          if constexpr (std::is_same_v<Field, bool>) {
            return to.add_flag(option.names, *field, option.meaning);
          } else if constexpr (std::is_same_v<Field, std::optional<std::string>>) {
            // The parser would take an empty value as none.
            std::string& text = texts_.emplace_back();
            CLI::Option* const made = to.add_option(option.names, text, option.meaning);
            stores_.emplace_back([field, made, &text] {
              if (made->count() > 0) *field = text;
            });
            return made;
          } else {
            return to.add_option(option.names, *field, option.meaning);
          }
        },
        option.field);
    const OptionRules& rules = option.rules;
    if (rules.is_required) added->required();
    if (option.is_list() && !option.is_argument()) added->allow_extra_args(false);
    if (!rules.variable.empty()) added->envname(rules.variable);
    if (!rules.choices.empty()) added->check(CLI::IsMember(rules.choices));
    if (rules.accepts == Accepts::priority) {
      CLI::Validator range = CLI::Range(-store::kPriorityMax, store::kPriorityMax);
      range.description("");  // documented in the option's help
      added->check(range);
    } else if (rules.accepts != Accepts::anything) {
      added->check(CLI::Validator(
          [accepts = rules.accepts](const std::string& text) { return fault_of(accepts, text); },
          "", "value"));
    }
  }

  CommonOptions common_;
  std::map<const Command*, std::unique_ptr<BoundCommand>> bound_;
  std::deque<std::string> texts_;              // values of optional fields
  std::vector<std::function<void()>> stores_;  // stores each of them
  CLI::App app_{
      "A deterministic runtime for AI agents: a recorded success is never called again, and an "
      "unknown outcome is never guessed.",
      "aetheris"};
};

// After an unexpected NAME=VALUE, as `run` takes it: what this command takes instead.
std::string pair_hint_of(std::string_view command_name,
                         const std::vector<std::string>& unexpected) {
  constexpr std::size_t kPairShown = 40;
  const Command* const command = find_command(command_name);
  if (command == nullptr || command->pair_hint == nullptr) return {};
  for (const std::string& word : unexpected) {
    const std::size_t at = word.find('=');
    if (word.starts_with('-') || at == word.npos || word.size() > kPairShown) continue;
    if (std::string hint = command->pair_hint(word); !hint.empty()) return hint;
  }
  return {};
}

// Older names of options. The help and the completion scripts do not have them.
struct OptionAlias {
  std::string_view command, alias, option;
};
constexpr OptionAlias kOptionAliases[] = {{"events", "--said", "--partial-output"},
                                          {"jobs", "--stuck", "--stalled"}};

// The name of the option instead of an older one, with its `=VALUE`.
std::string standard_word(std::string_view command, std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  for (const OptionAlias& one : kOptionAliases) {
    if (one.command == command && one.alias == name) {
      return fmt::format("{}{}", one.option, word.substr(name.size()));
    }
  }
  return std::string(word);
}

// The command line with `help COMMAND` as `COMMAND --help`, `help` as `--help`, and options under
// their names.
std::vector<std::string> standard_words(int argc, char** argv) {
  const std::string_view command = command_of(argc, argv);
  std::vector<std::string> words;
  bool options_end = false;
  for (int i = 0; i < argc; ++i) {
    options_end = options_end || std::string_view(argv[i]) == "--";
    words.push_back(options_end ? argv[i] : standard_word(command, argv[i]));
  }
  if (argc < 2 || words[1] != "help") return words;
  words.erase(words.begin() + 1);
  words.emplace_back("--help");
  return words;
}

// Takes -- and the words after it, if the command stores these itself.
std::vector<std::string> take_after_dashes(std::string_view command_name,
                                           std::vector<std::string>& words) {
  const Command* const command = find_command(command_name);
  const auto dashes = std::ranges::find(words, "--");
  if (command == nullptr || dashes == words.end() || command->bind()->after_dashes() == nullptr) {
    return {};
  }
  std::vector<std::string> after(dashes + 1, words.end());
  words.erase(dashes, words.end());
  return after;
}

Error unknown_command(const std::string& command) {
  agents::ClosestName nearest(command);
  for (const Command* one : commands()) nearest.consider(std::string(one->name));
  const std::string suggestion = nearest.best();
  return {
      Code::usage,
      fmt::format("unknown command \"{}\"{}; `aetheris --help` lists them", command.substr(0, 64),
                  suggestion.empty() ? "" : fmt::format(" (did you mean {}?)", suggestion))};
}

}  // namespace

Parsed parse(int raw_argc, char** raw_argv) {
  std::vector<std::string> words = standard_words(raw_argc, raw_argv);
  std::vector<std::string> after = take_after_dashes(command_of(raw_argc, raw_argv), words);
  std::vector<char*> pointers;
  pointers.reserve(words.size());
  for (std::string& word : words) pointers.push_back(word.data());
  const int argc = static_cast<int>(words.size());
  char** const argv = pointers.data();
  Parsed parsed;
  bool store_given = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") break;
    const std::string_view word = argv[i];
    if (word == "--json") parsed.json = true;
    store_given = store_given || word == "--store" || word.starts_with("--store=");
  }
  if (auto unsupported = unsupported_yet(argc, argv)) {
    parsed.error = std::move(unsupported);
    return parsed;
  }
  try {
    Grammar grammar;
    if (argc <= 1) {
      std::fputs(grammar.app().help().c_str(), stderr);
      parsed.code = 2;
      return parsed;
    }
    const std::string command(command_of(argc, argv));
    if (!command.empty() && find_command(command) == nullptr) {
      parsed.error = unknown_command(command);
      parsed.usage = grammar.usage(command);
      return parsed;
    }
    try {
      grammar.app().parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) {
        std::ostringstream out;
        parsed.code = grammar.app().exit(error, out, out);
        parsed.output = std::move(out).str();
        return parsed;
      }
      std::string what = error.what();
      if (const std::size_t end = what.find_last_not_of(" \n"); end != what.npos) {
        what.resize(end + 1);
      }
      const std::string hint = pair_hint_of(command, grammar.app().remaining(true));
      if (!hint.empty()) what += fmt::format("; {}", hint);
      parsed.error = Error{Code::usage, fmt::format("{}; see `aetheris {}{}--help`", what, command,
                                                    command.empty() ? "" : " ")};
      parsed.usage = grammar.usage(command);
      return parsed;
    }
    // The parsed subcommand, which follows options that `command_of` does not know.
    parsed.command = find_command(grammar.app().get_subcommands().at(0)->get_name());
    parsed.bound = grammar.take_bound(*parsed.command);
    parsed.bound->common().store_given = store_given;
    if (auto* const into = parsed.bound->after_dashes()) *into = std::move(after);
  } catch (const std::exception& error) {
    parsed.command = nullptr;
    parsed.error = Error{Code::usage, error.what()};
  }
  return parsed;
}

}  // namespace ae::cli

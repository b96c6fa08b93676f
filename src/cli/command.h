// Command: one command of the command line as data: its texts, its options, what it needs, and the
// function that runs it.
//
// Each command is defined beside its implementation; commands.cc lists them. The parser, the help,
// the completion scripts and the option tables of docs/cli.md use this data.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/terminal.h"
#include "store/rules.h"

namespace ae::cli {

// The options of every command; the base of each command's own options.
struct CommonOptions {
  std::string store;         // "" = the default
  bool store_given = false;  // on the command line, not through AETHERIS_STORE
  bool json = false;         // the Terminal prints JSON
};

// The values that an option or argument accepts.
enum class Accepts {
  anything,
  not_empty,   // an empty value comes from an unset variable, and would silently disable the option
  identifier,  // agents::is_capability: a capability or a queue
  priority,    // -store::kPriorityMax to store::kPriorityMax
};

// Rules of an option or argument that most do not have.
struct OptionRules {
  bool is_required = false;
  Accepts accepts = Accepts::anything;
  std::vector<std::string> choices = {};   // empty = no fixed choices
  std::vector<std::string> words = {};     // offered by shells; the request checks the value
  std::string variable = {};               // the environment variable with its default
  std::string needs = {};                  // an option that must be given too
  std::vector<std::string> excludes = {};  // options that cannot be given too
};

// One option or argument of a command.
struct Option {
  // Where the parser stores the value. bool: a flag. vector: repeatable.
  using Field = std::variant<bool*, std::int64_t*, std::string*, std::optional<std::string>*,
                             std::vector<std::string>*>;

  std::string names;  // "--at", "-f,--follow"; of an argument: "ID"
  std::string value;  // the name of an option's value, for docs: "SEQ"; "" = a flag or an argument
  Field field;
  std::string meaning;
  OptionRules rules = {};

  bool is_argument() const { return !names.starts_with('-'); }
  bool is_flag() const { return std::holds_alternative<bool*>(field); }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(field); }
};

// A table of texts as `words`.
std::vector<std::string> words_of(std::ranges::sized_range auto&& table) {
  std::vector<std::string> words;
  words.reserve(std::ranges::size(table));
  for (const std::string_view word : table) words.emplace_back(word);
  return words;
}

inline const OptionRules kRequired{.is_required = true};
inline const OptionRules kNotEmpty{.accepts = Accepts::not_empty};

// Appends `more` to `options`.
inline std::vector<Option> operator+(std::vector<Option> options, std::vector<Option> more) {
  for (Option& option : more) options.push_back(std::move(option));
  return options;
}

// A command together with the values of its options.
class BoundCommand {
 public:
  virtual ~BoundCommand() = default;
  virtual CommonOptions& common() = 0;
  // The options of the command, without the common ones. They borrow this.
  virtual std::vector<Option> options() = 0;
  // Where the words after -- are stored; nullptr: they are arguments.
  virtual std::vector<std::string>* after_dashes() = 0;
  // Returns the exit code.
  virtual int run(Terminal& terminal) const = 0;
};

// The groups of commands in --help.
enum class Group { run, inspect, respond, control, maintain };

// What a command works on.
enum class Target {
  nothing,
  store_or_server,  // a store, or the server that AETHERIS_URL names
  store,            // a store; rejected with AETHERIS_URL
  served_store,     // a store that it serves; with AETHERIS_URL only if --store names it
};

struct Command {
  std::string_view name;
  Group group;
  Target target;
  std::string_view summary;
  std::string_view example;
  std::unique_ptr<BoundCommand> (*bind)();
  // For an unexpected argument NAME=VALUE, as `run` takes it: what this command takes instead; "" =
  // no hint.
  std::string (*pair_hint)(const std::string& pair) = nullptr;
};

// Makes a BoundCommand from an options struct (with `after_dashes` if its command has that), the function that declares its options, and the
// function that runs the command.
template <class Options, std::vector<Option> (*kDeclare)(Options&),
          int (*kRun)(const Options&, Terminal&)>
std::unique_ptr<BoundCommand> bound_command() {
  class Bound final : public BoundCommand {
   public:
    CommonOptions& common() override { return options_; }
    std::vector<Option> options() override { return kDeclare(options_); }
    std::vector<std::string>* after_dashes() override {
      if constexpr (requires { options_.after_dashes; }) return &options_.after_dashes;
      return nullptr;
    }
    int run(Terminal& terminal) const override { return kRun(options_, terminal); }

   private:
    Options options_;
  };
  return std::make_unique<Bound>();
}

}  // namespace ae::cli

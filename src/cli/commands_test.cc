// The list of commands is consistent, and a command line selects one of them.
#include "cli/commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/roles.h"
#include "cli/parse.h"
#include "engine/state/state.h"
#include "log/event_type.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

// "-f,--follow" → "-f", "--follow"
std::vector<std::string> names_of(const Option& option) {
  std::vector<std::string> names;
  for (std::size_t from = 0; from <= option.names.size();) {
    const std::size_t end = std::min(option.names.find(',', from), option.names.size());
    names.push_back(option.names.substr(from, end - from));
    from = end + 1;
  }
  return names;
}

Parsed parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "aetheris");
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  return parse(static_cast<int>(argv.size()), argv.data());
}

AE_TEST("commands/each command has a unique name, a summary and an example") {
  std::set<std::string_view> names;
  for (const Command* command : commands()) {
    EXPECT_TRUE(names.insert(command->name).second) << command->name;
    EXPECT_FALSE(command->summary.empty()) << command->name;
    EXPECT_NE(command->example.find(fmt::format("aetheris {}", command->name)),
              std::string_view::npos)
        << command->example;
    EXPECT_EQ(find_command(command->name), command);
  }
  EXPECT_EQ(find_command("unknown"), nullptr);
}

Option option_of(const std::vector<Option>& options, std::string_view name) {
  const auto found = std::ranges::find(options, name, &Option::names);
  AE_CHECK(found != options.end(), name);
  return *found;
}

AE_TEST("commands/the values that shells offer are those that are accepted") {
  const auto keys = find_command("keys")->bind();
  std::vector<std::string> roles;
  for (const api::Role role : api::all_roles()) roles.emplace_back(to_text(role));
  EXPECT_EQ(option_of(keys->options(), "--role").rules.choices, roles);
  const auto jobs = find_command("jobs")->bind();
  const Option status = option_of(jobs->options(), "--status");
  std::vector<std::string> statuses;
  for (const engine::JobStatus one :
       {engine::JobStatus::queued, engine::JobStatus::running, engine::JobStatus::waiting,
        engine::JobStatus::parked, engine::JobStatus::completed, engine::JobStatus::failed,
        engine::JobStatus::cancelled}) {
    statuses.emplace_back(to_text(one));
  }
  EXPECT_EQ(status.rules.words, statuses);
  for (const char* name : {"--status", "--kind", "--sort"}) {
    const Option option = option_of(jobs->options(), name);
    EXPECT_FALSE(option.rules.words.empty()) << name;
    for (const std::string& word : option.rules.words) {
      EXPECT_NE(option.meaning.find(word), std::string::npos) << name << " " << word;
    }
  }
  const auto events = find_command("events")->bind();
  EXPECT_EQ(option_of(events->options(), "--type").rules.words.size(), event_kinds().size());
}

AE_TEST("commands/each option has a unique name, a description, and a value unless it is a flag") {
  for (const Command* command : commands()) {
    const auto bound = command->bind();
    std::set<std::string> names{"-h", "--help"};
    for (const Option& option : declare_common(bound->common())) names.insert(option.names);
    const std::vector<Option> options = bound->options();
    for (const Option& option : options) {
      const std::string where = fmt::format("{} {}", command->name, option.names);
      for (const std::string& name : names_of(option)) {
        EXPECT_TRUE(names.insert(name).second) << where;
      }
      EXPECT_FALSE(option.meaning.empty()) << where;
      EXPECT_EQ(option.value.empty(), option.is_flag() || option.is_argument()) << where;
    }
    for (const Option& option : options) {
      std::vector<std::string> others = option.rules.excludes;
      if (!option.rules.needs.empty()) others.push_back(option.rules.needs);
      for (const std::string& other : others) {
        EXPECT_TRUE(names.contains(other)) << command->name << " " << option.names << ": " << other;
      }
    }
  }
}

AE_TEST("commands/a required argument does not follow an optional one") {
  for (const Command* command : commands()) {
    const auto bound = command->bind();
    bool optional = false;
    for (const Option& option : bound->options()) {
      if (!option.is_argument()) continue;
      EXPECT_FALSE(optional && option.rules.is_required) << command->name << " " << option.names;
      optional = optional || !option.rules.is_required;
    }
  }
}

AE_TEST("parse/a command line selects its command; --store is accepted before and after it") {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--store", "memory:", "job", "a"},
        std::vector<std::string>{"job", "a", "--store=memory:"}}) {
    const Parsed result = parsed(words);
    ASSERT_NE(result.command, nullptr) << (result.error ? result.error->message : "");
    EXPECT_EQ(result.command->name, "job");
    EXPECT_EQ(result.bound->common().store, "memory:");
    EXPECT_TRUE(result.bound->common().store_given);
  }
}

AE_TEST("parse/an option is accepted under its alias, which the commands do not list") {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"jobs", "--stuck", "--older-than", "1m"},
        std::vector<std::string>{"--json", "jobs", "--stuck=true"},
        std::vector<std::string>{"events", "a", "-f", "--said"}}) {
    const Parsed result = parsed(words);
    EXPECT_FALSE(result.error) << words[0] << ": " << result.error->message;
  }
  EXPECT_TRUE(parsed({"events", "a", "-f", "--stuck"}).error) << "an option of another command";
  EXPECT_TRUE(parsed({"jobs", "--", "--stuck"}).error) << "an argument";
  for (const Command* command : commands()) {
    for (const Option& option : command->bind()->options()) {
      EXPECT_NE(option.names, "--stuck");
      EXPECT_NE(option.names, "--said");
    }
  }
}

AE_TEST("parse/a violated rule of an option is a usage error with the usage of the command") {
  const std::vector<std::vector<std::string>> lines = {
      {"run", "a.yaml", "--job-id", ""},           {"run", "a.yaml", "--priority", "1001"},
      {"run", "a.yaml", "--queue", "a b"},         {"run", "a.yaml", "--durability", "both"},
      {"events", "a", "--partial-output"},         {"jobs", "--stalled", "--agent", "a"},
      {"serve", "--fair-by", "a", "--no-fair-by"}, {"fork", "a"}};
  for (const std::vector<std::string>& words : lines) {
    const Parsed result = parsed(words);
    ASSERT_TRUE(result.error) << words[0] << " " << words.back();
    EXPECT_EQ(result.command, nullptr);
    EXPECT_EQ(result.error->code, Code::usage);
    EXPECT_TRUE(result.usage.starts_with("usage: aetheris " + words[0])) << result.usage;
  }
}

}  // namespace
}  // namespace ae::cli

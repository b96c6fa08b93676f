#include "sim/code_program.h"

#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <set>
#include <utility>

#include "base/error.h"
#include "json/json.h"
#include "sim/sim_random.h"

namespace ae::sim {
namespace {

using namespace std::chrono_literals;
using Kind = CodeItem::Kind;

CodeItem call(std::string name, std::string tool, std::vector<Value> fate = {}) {
  return {.name = std::move(name), .tool = std::move(tool), .fate = std::move(fate)};
}
CodeItem wait(std::string name, engine::WaitType type) {
  CodeItem item{.kind = Kind::wait, .name = std::move(name)};
  item.wait.type = type;
  if (type == engine::WaitType::timer) item.wait.lasts = 5s;
  if (type == engine::WaitType::message) item.wait.channel = "news";
  return item;
}

// ---------------------------------------------------------------- random programs

class ProgramDraft {
 public:
  explicit ProgramDraft(std::uint64_t number) : random_(number * 6151 + 29) {}
  CodeProgram draw() {
    CodeProgram program;
    for (std::uint64_t left = 1 + random_.below(4); left > 0; --left) {
      program.groups.push_back(group(program.groups.size()));
    }
    return program;
  }

 private:
  CodeGroup group(std::size_t number) {
    CodeGroup made;
    if (random_.one_in(3)) made.scope = fmt::format("s{}", number);
    const std::uint64_t count = 1 + random_.below(3);
    made.is_race = made.scope.empty() && count > 1 && random_.one_in(5);
    for (std::uint64_t i = 0; i < count; ++i) made.items.push_back(item(number, i));
    return made;
  }
  CodeItem item(std::size_t group, std::uint64_t number) {
    static constexpr std::string_view kCalled[] = {"run:read",
                                                   "run:idempotent",
                                                   "run:idempotent",
                                                   "run:at_most_once",
                                                   "run:at_most_once",
                                                   "look",
                                                   "put",
                                                   "once",
                                                   "pay",
                                                   "book",
                                                   "grab",
                                                   "wire",
                                                   "gift",
                                                   "vote",
                                                   "quiz"};
    CodeItem made{.name = fmt::format("g{}n{}", group, number)};
    const std::uint64_t kind = random_.below(12);
    if (kind < 8) {
      made.tool = kCalled[random_.below(std::size(kCalled))];
      made.ends_code = random_.one_in(3);
    } else if (kind < 10) {
      static constexpr engine::WaitType kTypes[] = {
          engine::WaitType::signal, engine::WaitType::human, engine::WaitType::timer,
          engine::WaitType::message};
      made = wait(std::move(made.name), kTypes[random_.below(std::size(kTypes))]);
      if (made.wait.type != engine::WaitType::timer && random_.one_in(2)) {
        made.wait.expires = random_.between(3s, 25s);
      }
    } else {
      made.kind = kind == 11 ? Kind::emit : random_.one_in(2) ? Kind::time : Kind::uuid;
    }
    return made;
  }

  SimRandom random_;
};

// ---------------------------------------------------------------- programs of the sweep

struct NamedProgram {
  std::string_view agent;
  CodeProgram program;
};

const std::vector<NamedProgram>& named_programs() {
  static const std::vector<NamedProgram> programs = {
      // Functions of each class, two in a scope, and a tool of the server, one after the other.
      {"calls",
       {{{.items = {call("a", "run:read")}},
         {.items = {call("b", "run:idempotent")}, .scope = "s"},
         {.items = {call("c", "run:at_most_once")}, .scope = "t"},
         {.items = {call("d", "put")}}}}},
      // Two at once; then two in a scope; then values. The end depends on the order and the time.
      {"scopes",
       {{{.items = {call("a", "run:idempotent"), call("b", "look")}},
         {.items = {call("c", "run:idempotent"), call("d", "once")}, .scope = "s"},
         {.items = {{.kind = Kind::time, .name = "t"},
                    {.kind = Kind::uuid, .name = "u"},
                    {.kind = Kind::emit, .name = "e"},
                    call("f", "run:at_most_once")}}}}},
      // The function is awaited, the signal is not needed any more.
      {"races",
       {{{.items = {call("a", "run:idempotent"), wait("w", engine::WaitType::signal)},
          .is_race = true},
         {.items = {wait("t", engine::WaitType::timer)}},
         {.items = {call("b", "put")}}}}},
      // A failure ends the code, and what was done is undone.
      {"undoes",
       {{{.items = {call("a", "book")}},
         {.items = {call("b", "run:idempotent")}},
         {.items = {{.name = "c", .tool = "look", .fate = {"denied"}, .ends_code = true}}}}}},
  };
  return programs;
}

}  // namespace

CodeProgram code_program(std::string_view agent) {
  for (const NamedProgram& named : named_programs()) {
    if (named.agent == agent) return named.program;
  }
  constexpr std::string_view kPrefix = "program-";
  AE_CHECK(agent.starts_with(kPrefix), std::string(agent));
  const std::string_view digits = agent.substr(kPrefix.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  AE_CHECK(error == std::errc() && end == digits.end(), std::string(agent));
  return ProgramDraft(number).draw();
}

Value code_graph(std::string_view agent) {
  std::set<std::string> tools{"run:read"};
  for (const CodeGroup& group : code_program(agent).groups) {
    for (const CodeItem& item : group.items) {
      if (!item.tool.empty()) tools.insert(item.tool);
    }
  }
  const std::string names = canonical(Value::array({tools.begin(), tools.end()}));
  const auto graph = parse_json(fmt::format(
      R"({{"nodes":[{{"id":"code","kind":"code","code":{{"agent":"{}","language":"cpp","tools":{}}}}}],)"
      R"("schema":1}})",
      agent, names));
  AE_CHECK(graph.has_value(), names);
  return *graph;
}

}  // namespace ae::sim

// Tests of `serve --watch`: an edit of its files takes effect, and only as a whole.
//
// Method: an in-memory instance with native tools watches files of a temporary folder a few hundred
// times a second. The writers are timers of the same loop: between two checks of the files, each of
// their timers has run.
#include "app/reloader.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/merge_agents.h"
#include "app/toolbox.h"
#include "json/json.h"
#include "mcp/client/listing.h"
#include "net/system.h"
#include "testing/test.h"

namespace ae::app {
namespace {

using namespace std::chrono_literals;
using Report = Reloader::Report;

constexpr Duration kCheckEvery = 1ms;

// An agent whose only call has `word` as argument.
std::string agent(const std::string& name, const std::string& word) {
  return "  " + name + ": { description: \"" + word +
         "\", plan: [ { id: s, tool: echo, args: { word: \"" + word + "\" } } ] }\n";
}
std::string agents_file(const std::string& agents) {
  return "aetheris: 1\ntools: { echo: { native: echo, effect: read } }\nagents:\n" + agents;
}
std::string policies_file(const std::string& action) {
  return fmt::format("aetheris: 1\npolicies: [ {{ tools: [echo], action: {} }} ]\n", action);
}
// A server that cannot start: only its pinned tools are used.
const std::string kWithServer =
    "aetheris: 1\ntools: { s: { mcp: { command: [/bin/sh, -c, \"exit 1\"] } } }\nagents:\n";
std::string agent_of_server(const std::string& word) {
  return "  one: { description: \"" + word + "\", plan: [ { id: s, tool: s.t, args: {} } ] }\n";
}
std::string lock_file() {
  const auto tool = mcp::client::pin_tool(
      *parse_json(R"({"name":"t","description":"d","inputSchema":{"type":"object"}})"));
  return canonical(Value::object(
      {{"lock", 1},
       {"servers", Value::object({{"s", Value::object({{"tools", Value::array({*tool})}})}})}}));
}

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/aetheris-reloader-XXXXXX";
    AE_CHECK(::mkdtemp(pattern) != nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string at(const std::string& name) const { return fmt::format("{}/{}", path_, name); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(at(name), std::ios::binary) << text;
  }
  void move(const std::string& from, const std::string& to) const {
    std::filesystem::rename(at(from), at(to));
  }

 private:
  std::string path_;
};

// A server that watches a.yaml, or the given files.
class ReloadFixture {
 public:
  explicit ReloadFixture(const Folder& folder, std::vector<std::string> names = {"a.yaml"},
                         const std::string& policies = "") {
    Reloader::Options reloader_options{.poll_every = kCheckEvery, .retry_after = kCheckEvery};
    if (!policies.empty()) reloader_options.policies = folder.at(policies);
    std::vector<std::pair<std::string, LoadedAgents>> files;
    for (const std::string& name : names) {
      reloader_options.files.push_back(folder.at(name));
      auto one = load_agents(folder.at(name), {.servers = ServerListing::never,
                                               .policies = reloader_options.policies});
      AE_CHECK(one.has_value() && one->diagnostics.empty(), name);
      files.emplace_back(folder.at(name), *std::move(one));
    }
    auto joined = merge_agents(std::move(files));
    AE_CHECK(joined.has_value());
    loaded_ = *std::move(joined);
    InstanceOptions options{.store = *store_url("memory:"), .mode = InstanceOptions::Mode::run};
    options.agents = &loaded_.file;
    options.agents_folder = loaded_.folder;
    options.read_agent = [this](std::string_view name, std::string_view json, agents::Agent& out) {
      return read_agent(loaded_, name, json, out);
    };
    auto opened = Instance::open(std::move(options));
    AE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
    instance_ = *std::move(opened);
    AE_CHECK(instance_->register_agents().has_value());
    reloader_.emplace(*instance_, reloader_options, loaded_, [this](const Report& report) {
      reports.push_back(report);
      instance_->loop().stop();
    });
    reloader_->begin();
  }
  ~ReloadFixture() { reloader_.reset(); }
  ReloadFixture(const ReloadFixture&) = delete;
  ReloadFixture& operator=(const ReloadFixture&) = delete;

  Report next() {
    const std::size_t seen = reports.size();
    while (reports.size() == seen) instance_->loop().run();
    return reports.back();
  }
  // Waits for a few more checks of the files; returns the number of new reports.
  std::size_t after_more_checks() {
    const std::size_t seen = reports.size();
    bool over = false;
    instance_->loop().after(20 * kCheckEvery, [&] {
      over = true;
      instance_->loop().stop();
    });
    while (!over) instance_->loop().run();
    return reports.size() - seen;
  }
  Value body(const std::string& name) {
    api::ApiRequest request;
    request.path = {"api", "agents", name};
    return instance_->send(std::move(request)).body;
  }
  std::string word(const std::string& name) {
    return std::string(body(name)["description"].is_string() ? body(name).text("description") : "");
  }
  void record(const store::AgentVersion& version) {
    std::optional<bool> written;
    instance_->store().append_audit_entry(store::agent_registered(version),
                                          [&](Result<void> result) {
                                            written = result.has_value();
                                            instance_->loop().stop();
                                          });
    while (!written) instance_->loop().run();
    AE_CHECK(*written);
  }
  net::AsioLoop& loop() { return instance_->loop(); }

  std::vector<Report> reports;

 private:
  LoadedAgents loaded_;
  std::unique_ptr<Instance> instance_;
  std::optional<Reloader> reloader_;
};

std::string report_text(const Report& report) {
  if (report.error) return std::string(code_name(report.error->code));
  if (!report.diagnostics.empty()) return "diagnostics";
  std::string text;
  for (const auto& one : report.changes) {
    text += fmt::format("{} {}-{} ", one.name, one.from, one.to);
  }
  return text;
}

AE_TEST("reloader/a file takes effect once it is completely written") {
  const Folder folder;
  folder.write("a.yaml", agents_file(agent("one", "old")));
  ReloadFixture fixture(folder);
  // Each part is a valid file, and between two checks there is always another one.
  const std::string whole = agents_file(agent("one", "new")) + agent("two", "new");
  std::size_t parts = 0;
  std::function<void()> write_next = [&] {
    if (++parts == 100) return folder.write("a.yaml", whole);
    folder.write("a.yaml", agents_file(agent("one", "half")) + std::string(parts, '\n'));
    fixture.loop().after(kCheckEvery / 4, [&] { write_next(); });
  };
  write_next();
  EXPECT_EQ(report_text(fixture.next()), "one 1-2 two 0-1 ");
  EXPECT_EQ(parts, 100U);
  EXPECT_EQ(fixture.word("one"), "new");
  EXPECT_EQ(fixture.reports.size(), 1U);
}

AE_TEST("reloader/an agents file and its policies file edited together take effect together") {
  const Folder folder;
  folder.write("a.yaml", agents_file(agent("one", "deny")));
  folder.write("p.yaml", policies_file("deny"));
  ReloadFixture fixture(folder, {"a.yaml"}, "p.yaml");
  // The second file follows the first before the next check, in either order.
  int edits = 0;
  std::function<void()> edit = [&] {
    const std::string action = ++edits % 2 == 0 ? "deny" : "require_approval";
    const std::string agents = agents_file(agent("one", action));
    const bool agents_first = edits % 3 == 0;
    agents_first ? folder.write("a.yaml", agents) : folder.write("p.yaml", policies_file(action));
    fixture.loop().after(kCheckEvery / 2, [&, agents, action, agents_first] {
      agents_first ? folder.write("p.yaml", policies_file(action)) : folder.write("a.yaml", agents);
    });
  };
  for (int i = 0; i < 12; ++i) {
    edit();
    const Report report = fixture.next();
    ASSERT_EQ(report_text(report), fmt::format("one {}-{} ", i + 1, i + 2));
    EXPECT_EQ(report.files.size(), 2U);
    const std::string plan = canonical(fixture.body("one")["plan"]);
    const std::string word = fixture.word("one");
    const std::string other = word == "deny" ? "require_approval" : "deny";
    EXPECT_NE(plan.find(fmt::format("\"{}\"", word)), std::string::npos) << plan;
    EXPECT_EQ(plan.find(fmt::format("\"{}\"", other)), std::string::npos) << plan;
  }
}

AE_TEST("reloader/a refused definition keeps the previous one and is reported once") {
  const Folder folder;
  folder.write("a.yaml", agents_file(agent("one", "old")));
  folder.write("b.yaml", agents_file(agent("two", "old")));
  ReloadFixture fixture(folder, {"a.yaml", "b.yaml"});
  const std::string refused[] = {
      agents_file(agent("two", "new")) + "toolz: {}\n",  // a diagnostic
      agents_file(agent("one", "other")),                // two definitions of one agent
  };
  for (const std::string& text : refused) {
    folder.write("b.yaml", text);
    EXPECT_NE(report_text(fixture.next()), "");
    EXPECT_TRUE(fixture.reports.back().changes.empty());
    EXPECT_EQ(fixture.after_more_checks(), 0U);
    EXPECT_EQ(fixture.word("one"), "old");
    EXPECT_EQ(fixture.word("two"), "old");
  }
  folder.write("b.yaml", agents_file(agent("two", "new")));
  EXPECT_EQ(report_text(fixture.next()), "two 1-2 ");
}

AE_TEST("reloader/a file missing for a moment is not an edit; a reload waits for a missing file") {
  const Folder folder;
  folder.write("a.yaml", agents_file(agent("one", "old")));
  folder.write("b.yaml", agents_file(agent("two", "old")));
  ReloadFixture fixture(folder, {"a.yaml", "b.yaml"});
  folder.move("a.yaml", "away");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  folder.move("away", "a.yaml");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  folder.move("a.yaml", "away");
  folder.write("b.yaml", agents_file(agent("two", "new")));
  EXPECT_EQ(report_text(fixture.next()), "usage");
  EXPECT_EQ(fixture.after_more_checks(), 0U) << "it is retried, and reported once";
  folder.move("away", "a.yaml");
  EXPECT_EQ(report_text(fixture.next()), "two 1-2 ");
}

AE_TEST("reloader/a lock file that is removed and restored is used again") {
  const Folder folder;
  folder.write("a.yaml", kWithServer + agent_of_server("old"));
  folder.write("a.lock.json", lock_file());
  ReloadFixture fixture(folder);
  folder.move("a.lock.json", "away");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  folder.move("away", "a.lock.json");
  EXPECT_EQ(fixture.after_more_checks(), 0U) << "it is unchanged";
  // An edit in between needs it: this is reported once, and retried.
  folder.move("a.lock.json", "away");
  folder.write("a.yaml", kWithServer + agent_of_server("new"));
  EXPECT_EQ(report_text(fixture.next()), "diagnostics");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  EXPECT_EQ(fixture.word("one"), "old");
  folder.move("away", "a.lock.json");
  EXPECT_EQ(report_text(fixture.next()), "one 1-2 ");
  EXPECT_EQ(fixture.word("one"), "new");
}

AE_TEST("reloader/a lock file that is invalid, or lacks a tool, is reported once for each edit") {
  const Folder folder;
  folder.write("a.yaml", kWithServer + agent_of_server("old"));
  folder.write("a.lock.json", lock_file());
  ReloadFixture fixture(folder);
  folder.write("a.lock.json", "{\"lock\":1");
  EXPECT_EQ(report_text(fixture.next()), "plan_invalid");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  folder.write("a.yaml", kWithServer + agent_of_server("new"));
  EXPECT_EQ(report_text(fixture.next()), "plan_invalid") << "also for this edit";
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  folder.write("a.lock.json", R"({"lock":1,"servers":{"s":{"tools":[]}}})");
  EXPECT_EQ(report_text(fixture.next()), "diagnostics");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  EXPECT_EQ(fixture.word("one"), "old");
  folder.write("a.lock.json", lock_file());
  EXPECT_EQ(report_text(fixture.next()), "one 1-2 ");
}

AE_TEST("reloader/an edit above the limit of versions of an agent changes nothing") {
  const Folder folder;
  folder.write("a.yaml", agents_file(agent("one", "old") + agent("two", "old")));
  ReloadFixture fixture(folder);
  store::AgentVersion version{.name = "one", .version = 0, .plan_hash = std::string(64, 'a')};
  for (int i = 2; i <= 1'000; ++i) {
    version.definition = Value::object({{"n", i}});
    fixture.record(version);
  }
  // `two` could be registered, but is not.
  folder.write("a.yaml", agents_file(agent("one", "new") + agent("two", "new")));
  EXPECT_EQ(report_text(fixture.next()), "input_invalid");
  EXPECT_NE(fixture.reports.back().error->message.find("agent one has 1000 versions"),
            std::string::npos);
  EXPECT_EQ(fixture.body("two")["version"], Value(1));
  EXPECT_EQ(fixture.word("two"), "old");
  EXPECT_EQ(fixture.after_more_checks(), 0U);
  folder.write("a.yaml", agents_file(agent("one_b", "new") + agent("two", "new")));
  EXPECT_EQ(report_text(fixture.next()), "one_b 0-1 two 1-2 ");
}

AE_TEST_SLOW("reloader/an edit above the limit of agents changes nothing") {
  const Folder folder;
  folder.write("a.yaml", agents_file(agent("one", "old") + agent("two", "old")));
  ReloadFixture fixture(folder);
  store::AgentVersion version{.name = "", .version = 0, .plan_hash = std::string(64, 'a')};
  version.definition = Value::object({});
  for (int i = 2; i < 999; ++i) {
    version.name = fmt::format("x{}", i);
    fixture.record(version);
  }
  folder.write("a.yaml",
               agents_file(agent("two", "newer") + agent("three", "new") + agent("four", "new")));
  EXPECT_EQ(report_text(fixture.next()), "input_invalid") << "1001 agents";
  EXPECT_EQ(fixture.word("two"), "old");
  folder.write("a.yaml", agents_file(agent("two", "newer") + agent("three", "new")));
  EXPECT_EQ(report_text(fixture.next()), "three 0-1 two 1-2 ") << "1000 agents";
}

AE_TEST("reloader/an edit with a tool above its limit of versions is refused as a whole") {
  const Folder folder;
  folder.write("a.yaml",
               "aetheris: 1\ntools:\n  echo: { native: echo, effect: read }\n"
               "  again: { native: echo, effect: read }\nagents:\n" +
                   agent("one", "old"));
  auto loaded = load_agents(folder.at("a.yaml"), {.servers = ServerListing::never});
  ASSERT_TRUE(loaded.has_value());
  net::AsioLoop loop;
  net::BootClock steady;
  const ToolFolders folders{loaded->folder, loaded->folders};
  auto toolbox = Toolbox::make(loop, steady, loaded->file, folders, "");
  ASSERT_TRUE(toolbox.has_value());
  const auto versions = [&](const char* tool) {
    return (*toolbox)->tool_registry().all(tool).size();
  };
  agents::AgentsFile file = loaded->file;
  for (std::size_t i = 1; i < Toolbox::kVersionsMax; ++i) {
    file.tools.at("echo").policy.version = std::to_string(i);
    auto begin = (*toolbox)->update_tools(file, folders);
    ASSERT_TRUE(begin.has_value());
    (*begin)();
  }
  EXPECT_EQ(versions("echo"), Toolbox::kVersionsMax);
  file.tools.at("again").policy.version = "new";
  file.tools.at("echo").policy.version = "one more";
  const auto refused = (*toolbox)->update_tools(file, folders);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::input_invalid);
  EXPECT_NE(refused.error().message.find("restart the server"), std::string::npos);
  EXPECT_EQ(versions("echo"), Toolbox::kVersionsMax);
  EXPECT_EQ(versions("again"), 1U);
}

}  // namespace
}  // namespace ae::app

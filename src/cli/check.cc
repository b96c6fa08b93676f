// check, init, version: commands without a store.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "app/instance.h"
#include "app/secret_names.h"
#include "base/counted.h"
#include "cli/graph_text.h"
#include "cli/process_options.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

struct CheckOptions : CommonOptions {
  std::string policies;
  std::vector<std::string> files;
  bool graph = false, accept = false, diff = false;
};

std::vector<Option> check_options(CheckOptions& o) {
  return {
      policies_option(o.policies),
      {"FILE", "", &o.files, "the agents files", kRequired},
      {"--graph", "", &o.graph, "print each plan as a graph"},
      {"--accept", "", &o.accept, "list the tools of every MCP server, show changes and pin them"},
      {"--diff",
       "",
       &o.diff,
       "list the tools of every MCP server and show changes",
       {.excludes = {"--accept"}}}};
}

int check_command(const CheckOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  std::vector<agents::Diagnostic> diagnostics;
  std::string good;
  std::vector<Value> notes;
  std::vector<agents::Policy> policies;  // from --policies
  std::vector<agents::AgentsFile> files;
  const auto noted = [&](const std::string& file, const agents::Note& note) {
    terminal.note(safe(fmt::format("{}: {}: {}", file, note.path, note.message)));
    notes.push_back(
        Value::object({{"file", file}, {"path", note.path}, {"message", note.message}}));
  };
  const app::ServerListing servers = options.diff     ? app::ServerListing::to_compare
                                     : options.accept ? app::ServerListing::to_pin
                                                      : app::ServerListing::if_unpinned;
  for (const std::string& file : options.files) {
    auto loaded = app::load_agents(file, {.servers = servers, .policies = options.policies});
    if (!loaded) return terminal.fail_with(loaded.error());
    for (const std::string& line : loaded->notices) terminal.note(safe(line));
    if (!loaded->diagnostics.empty()) {
      diagnostics.insert(diagnostics.end(), loaded->diagnostics.begin(), loaded->diagnostics.end());
      continue;
    }
    for (const agents::Note& note : loaded->file.notes) noted(file, note);
    for (const app::MissingSecret& one : app::missing_secrets(loaded->file, *store)) {
      noted(file, {one.tool, one.why.message});
    }
    policies = loaded->policies;
    files.push_back(loaded->file);
    if (options.graph) {
      for (const auto& [name, agent] : loaded->file.agents) {
        good += graph_text(name, agent.task_graph, terminal.out(), terminal.width());
      }
      continue;
    }
    const std::string models =
        loaded->file.models.empty()
            ? ""
            : fmt::format(", {}", counted(loaded->file.models.size(), "model"));
    good += fmt::format("{}: {} ({}, {}{})\n", safe(file), terminal.out()(Tint::good, "ok"),
                        counted(loaded->file.agents.size(), "agent"),
                        counted(loaded->file.tools.size(), "tool"), models);
  }
  if (diagnostics.empty()) {
    std::vector<const agents::AgentsFile*> valid_files;
    valid_files.reserve(files.size());
    for (const agents::AgentsFile& file : files) valid_files.push_back(&file);
    for (const agents::Note& idle : agents::unused_policies(policies, valid_files)) {
      noted(options.policies, idle);
    }
    for (std::size_t i = 0; i < files.size() && agents::has_approvals(valid_files); ++i) {
      if (const auto open = agents::unsandboxed_programs(files[i])) noted(options.files[i], *open);
    }
  }
  if (terminal.json()) {
    Value json = agents::diagnostics_json(diagnostics);
    if (!notes.empty()) json = json.with("notes", Value::array(std::move(notes)));
    terminal.print_json(json);
  } else {
    if (!good.empty()) terminal.print(good);
    if (!diagnostics.empty()) {
      terminal.print(safe(agents::diagnostics_text(diagnostics), true));
      terminal.note(counted(diagnostics.size(), "error"));
    }
  }
  return diagnostics.empty() ? kDone : kUsage;
}

std::vector<Option> no_options(CommonOptions&) { return {}; }

int version_command(const CommonOptions&, Terminal& terminal) {
  const std::string version(app::kVersion);
  if (terminal.json()) {
    terminal.print_json(Value::object({{"name", "aetheris"}, {field::version, version}}));
  } else {
    terminal.print(fmt::format("aetheris {}\n", version));
  }
  return kDone;
}

// ---------------------------------------------------------------- init

struct InitOptions : CommonOptions {
  std::string folder;
};

std::vector<Option> init_options(InitOptions& o) {
  return {{"DIR", "", &o.folder, "the folder (default .)"}};
}

constexpr std::string_view kFirstAgents =
    R"(# An agents file: tools, and agents that use them. `aetheris check agents.yaml` lists all errors in it.
aetheris: 1

tools:
  # A program is a tool: its arguments come on stdin as JSON, what it prints is its result.
  clock:
    description: What time it is
    command: ["date", "-u", "+%FT%TZ"]
    effect: read                 # no side effect: safe to repeat

  # This tool has a side effect (it appends to a file), so it is never run twice for one step. After a crash during the
  # call the job parks and asks you for the outcome. An exit code other than 0 means that nothing was done; a program
  # that cannot guarantee that must not exit with one.
  write_down:
    description: Append a line to notes.txt
    command: ["sh", "-c", "cat >> notes.txt && echo >> notes.txt && echo written"]
    cwd: .                       # relative to this file
    effect: at_most_once

agents:
  hello:
    input_schema:
      type: object
      properties: { name: { type: string } }
    plan:
      - { id: now, tool: clock }
      - id: note
        tool: write_down
        needs: [now]
        args: { greeting: 'Hello, ${ .input.name // "world" }!', at: "${ .steps.now }" }
    output: { message: 'Hello, ${ .input.name // "world" }!', at: "${ .steps.now }" }
)";

Status write_file(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST) {
    return fail(Code::already_exists, "{} already exists; nothing was changed", path);
  }
  if (file < 0) {
    return fail(Code::unavailable, "cannot write {}: {}", path, std::strerror(errno));
  }
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = ::write(file, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      Error error{Code::unavailable,
                  fmt::format("cannot write {}: {}", path, std::strerror(errno))};
      ::close(file);
      ::unlink(path.c_str());
      return std::unexpected(std::move(error));
    }
    done += static_cast<std::size_t>(size);
  }
  ::close(file);
  return {};
}

// Creates all folders of a path.
Status make_folders(const std::string& path) {
  for (std::size_t at = 1; at <= path.size(); ++at) {
    if (at < path.size() && path[at] != '/') continue;
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
      return fail(Code::unavailable, "cannot create the folder {}: {}", part, std::strerror(errno));
    }
  }
  return {};
}

int init_command(const InitOptions& options, Terminal& terminal) {
  const std::string folder = options.folder.empty() ? "." : options.folder;
  if (auto made = make_folders(folder); !made) return terminal.fail_with(made.error());
  const std::string path = folder == "." ? "agents.yaml" : fmt::format("{}/agents.yaml", folder);
  if (auto written = write_file(path, kFirstAgents); !written) {
    return terminal.fail_with(written.error());
  }
  const std::string enter = folder == "." ? "" : fmt::format("cd {} && ", quoted(folder));
  const std::string run = fmt::format("{}aetheris run agents.yaml name=Ada", enter);
  const std::string jobs = fmt::format("{}aetheris jobs", enter);
  if (terminal.json()) {
    terminal.print_json(Value::object(
        {{"files", Value::array({path})}, {"next", Value::array({Value(run), Value(jobs)})}}));
    return kDone;
  }
  const std::string line = folder == "." ? "" : fmt::format("cd {}\n  ", quoted(folder));
  terminal.print(
      fmt::format("wrote {}\n\nnext:\n  {}aetheris run agents.yaml name=Ada\n  aetheris jobs\n",
                  safe(path), line));
  return kDone;
}

}  // namespace

extern const Command kInitCommand{.name = "init",
                                  .group = Group::run,
                                  .target = Target::nothing,
                                  .summary = "write a runnable agents file into DIR",
                                  .example = "aetheris init demo",
                                  .bind = bound_command<InitOptions, init_options, init_command>};

extern const Command kCheckCommand{
    .name = "check",
    .group = Group::run,
    .target = Target::nothing,
    .summary = "check agents files",
    .example = "aetheris check agents.yaml --graph",
    .bind = bound_command<CheckOptions, check_options, check_command>};

extern const Command kVersionCommand{
    .name = "version",
    .group = Group::maintain,
    .target = Target::nothing,
    .summary = "print the version",
    .example = "aetheris version --json",
    .bind = bound_command<CommonOptions, no_options, version_command>};

}  // namespace ae::cli

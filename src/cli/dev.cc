// dev: a server and the workers of files of code, which it starts again at every edit.
#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/code_command.h"
#include "cli/code_children.h"
#include "cli/determinism_checks.h"
#include "cli/serve.h"
#include "cli/shared.h"

namespace ae::cli {
namespace {

struct DevOptions : ServeOptions {
  std::vector<std::string> given;         // FILE…
  std::vector<std::string> after_dashes;  // the command of a worker
  bool no_watch = false;
};

std::vector<Option> dev_options(DevOptions& o) {
  return {{"FILE", "", &o.given,
           "files of code (.ts .mts .cts .js .mjs .cjs .py, or an executable file) and agents "
           "files; after --, the command of a worker"},
          policies_option(o.policies),
          {"--listen", "ADDRESS:PORT", &o.listen, "ADDRESS:PORT (default 127.0.0.1:7070)"},
          {"--no-watch", "", &o.no_watch, "do not start workers again when files are edited"},
          {"--grace", "DURATION", &o.grace, "time for calls in flight on shutdown (default 10s)"},
          {"-v,--verbose", "", &o.verbose, "also jobs that are created"}};
}

constexpr Duration kStopGrace = std::chrono::seconds(2);

class Development final : public ServerPart {
 public:
  Development(const DevOptions& options, std::vector<app::CodeCommand> commands, Terminal& terminal)
      : options_(options), commands_(std::move(commands)), terminal_(terminal) {}

  void on_worker(const routines::Definitions& offered,
                 const std::vector<agents::Diagnostic>& faults, bool is_in_use) override {
    if (!children_) return;
    children_->on_worker(offered, faults);
    if (is_in_use) on_in_use();
  }
  bool on_reload(const app::Reloader::Report& report) override {
    if (report.error || !report.diagnostics.empty()) return false;
    if (children_) on_in_use();
    return report.files.empty();
  }
  void print_start(app::Instance& instance, const std::string&) override {
    terminal_.note(fmt::format("store:    {}", safe(instance.store_name())));
    if (!options_.no_watch) terminal_.note("watching: the folders of these files");
    if (instance.needs_keys()) terminal_.note("API keys: required");
  }
  Status begin(app::Instance& instance) override {
    AE_ASSIGN(std::string socket, instance.listen_for_workers());
    children_.emplace(instance,
                      CodeChildren::Options{.commands = commands_,
                                            .environment = {{"AETHERIS_SOCKET", std::move(socket)},
                                                            {"AETHERIS_URL", ""},
                                                            {"AETHERIS_DEV", "1"}},
                                            .is_watching = !options_.no_watch},
                      CodeChildren::Callbacks{
                          .print = [this](const std::string& line) { terminal_.note(line); }});
    children_->begin();
    checks_.emplace(instance, [this](const std::string& line) { terminal_.note(line); });
    return {};
  }
  void on_released(const JobId& job) override {
    if (checks_) checks_->on_released(job);
  }
  void end() override {
    checks_.reset();
    children_->stop(kStopGrace);
    children_.reset();
  }

 private:
  void on_in_use() {
    children_->on_in_use();
    if (checks_) checks_->on_new_code();
  }

  const DevOptions& options_;
  const std::vector<app::CodeCommand> commands_;
  Terminal& terminal_;
  std::optional<CodeChildren> children_;
  std::optional<DeterminismChecks> checks_;
};

int dev_command(const DevOptions& given, Terminal& terminal) {
  DevOptions options = given;
  std::vector<app::CodeCommand> commands;
  for (const std::string& file : options.given) {
    if (app::is_agents_file(file)) {
      options.files.push_back(file);
      continue;
    }
    auto command = app::code_command(file);
    if (!command) return terminal.fail_with(command.error());
    commands.push_back(*std::move(command));
  }
  if (!options.after_dashes.empty()) {
    commands.push_back(app::code_command_of(options.after_dashes));
  }
  if (commands.empty()) {
    return terminal.fail_with(
        {Code::usage,
         "dev needs a file of code, or the command of a worker after --; to serve agents files "
         "alone: aetheris serve FILE --watch"});
  }
  options.watch = !options.no_watch && !options.files.empty();
  options.code_versions = "warn";
  Development development(options, std::move(commands), terminal);
  return run_server(options, terminal, &development);
}

}  // namespace

extern const Command kDevCommand{.name = "dev",
                                 .group = Group::run,
                                 .target = Target::served_store,
                                 .summary = "run code agents: a server and their workers",
                                 .example = "aetheris dev agent.ts",
                                 .bind = bound_command<DevOptions, dev_options, dev_command>};

}  // namespace ae::cli
